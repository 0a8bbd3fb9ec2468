//! Injects faults into a watch that the proxy forwards.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kube::client;
use tokio::sync::watch;

use super::rules::{Fault, RequestKind, Stage};
use super::{Body, BoxError, Shared, status};

struct Watch {
    shared: Arc<Shared>,
    upstream: client::Body,
    rules_changed: watch::Receiver<()>,
    /// Whether the last event is complete. Faults are injected only between events. Each event is
    /// one line.
    between_events: bool,
    ended: bool,
}

/// Forwards the events of a watch, and injects faults between them.
pub(super) fn body(shared: Arc<Shared>, upstream: client::Body) -> Body {
    let mut rules_changed = shared.rules.changes();
    // The first fault is chosen at once, without waiting for an event.
    rules_changed.mark_changed();
    let watch = Watch { shared, upstream, rules_changed, between_events: true, ended: false };
    StreamBody::new(stream::unfold(watch, next)).boxed_unsync()
}

async fn next(mut watch: Watch) -> Option<(Result<Frame<Bytes>, BoxError>, Watch)> {
    if watch.ended {
        return None;
    }
    loop {
        let frame = tokio::select! {
            frame = watch.upstream.frame() => Some(frame),
            // This is never an error, because `shared` contains the sender.
            _ = watch.rules_changed.changed() => None,
        };
        let fault = watch
            .between_events
            .then(|| watch.shared.rules.choose(RequestKind::Watch, Stage::Watching))
            .flatten();
        if fault.is_some() {
            watch.shared.rules.record(fault);
        }
        match fault {
            Some(Fault::EndWatch) => return None,
            Some(Fault::CutWatch) => {
                watch.ended = true;
                return Some((Err("the watch is cut".into()), watch));
            }
            Some(Fault::ExpireWatch) => {
                let object = status(StatusCode::GONE, "Expired");
                let event = serde_json::json!({"type": "ERROR", "object": object});
                watch.ended = true;
                return Some((Ok(Frame::data(format!("{event}\n").into())), watch));
            }
            Some(Fault::StallWatch) => std::future::pending().await,
            _ => {}
        }
        let frame = match frame {
            None => continue,
            Some(None) => return None,
            Some(Some(frame)) => frame,
        };
        if let Some(data) = frame.as_ref().ok().and_then(Frame::data_ref) {
            watch.between_events = data.last() == Some(&b'\n');
        }
        return Some((frame.map_err(BoxError::from), watch));
    }
}
