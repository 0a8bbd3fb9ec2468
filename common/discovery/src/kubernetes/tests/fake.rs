//! An API server of a few objects, without a network, so that it runs on a paused clock.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use futures_util::stream;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::Instant;
use tower_service::Service;

/// The server. Its clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    /// By resource and name.
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    /// Verbs and resources.
    pub(super) forbidden: BTreeSet<(&'static str, &'static str)>,
    pub(super) down: Option<Down>,
    /// A watch ends when it is opened.
    pub(super) watches_end: bool,
    /// Taken out, they stay open and report nothing any more.
    pub(super) watches: Vec<(&'static str, UnboundedSender<io::Result<Bytes>>)>,
    /// `VERB RESOURCE`, and when.
    asked: Vec<(Instant, String)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Down {
    Refuses,
    Hangs,
}

pub(super) const SLICES: &str = "endpointslices";
pub(super) const ENDPOINTS: &str = "endpoints";
const SERVICES: &str = "services";

type Answer = BoxFuture<'static, io::Result<Response<UnsyncBoxBody<Bytes, io::Error>>>>;

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A slice of ready addresses.
    pub(super) fn slice(&self, name: &str, addresses: &[&str]) {
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        self.state().put(SLICES, name, json!({"addressType": "IPv4", "endpoints": endpoints}));
    }

    /// The older kind of object.
    pub(super) fn endpoints(&self, addresses: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|address| json!({"ip": address})).collect();
        self.state().put(ENDPOINTS, "runners", json!({"subsets": [{"addresses": addresses}]}));
    }

    pub(super) fn service(&self) {
        self.state().put(SERVICES, "runners", json!({}));
    }

    /// All watches end after this, if there is something.
    pub(super) fn end_watches(&self, last: impl Fn() -> Option<io::Result<Bytes>>) {
        for (_, watch) in self.state().watches.drain(..) {
            let _ = last().map(|last| watch.send(last));
        }
    }

    /// All watches break.
    pub(super) fn break_watches(&self) {
        self.end_watches(|| Some(Err(io::ErrorKind::ConnectionReset.into())));
    }

    /// All watches are told that their version is too old.
    pub(super) fn expire_watches(&self) {
        let expired = json!({"type": "ERROR", "object": status(410, "Expired")});
        self.end_watches(|| Some(Ok(format!("{expired}\n").into())));
    }

    /// When it was asked that.
    pub(super) fn asked(&self, what: &str) -> Vec<Instant> {
        self.state().asked.iter().filter(|(_, asked)| asked == what).map(|(at, _)| *at).collect()
    }
}

impl Service<Request<Body>> for Fake {
    type Response = Response<UnsyncBoxBody<Bytes, io::Error>>;
    type Error = io::Error;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        self.state().answer(request.uri())
    }
}

impl State {
    fn put(&mut self, resource: &'static str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"] = json!({"name": name, "resourceVersion": self.version.to_string()});
        self.objects.insert((resource, name.to_owned()), object.clone());
        self.report(resource, "MODIFIED", &object);
    }

    pub(super) fn delete(&mut self, resource: &'static str, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(&(resource, name.to_owned())).expect("it is there");
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.report(resource, "DELETED", &object);
    }

    fn report(&mut self, resource: &str, what: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": what, "object": object})));
        self.watches.retain(|(watched, watch)| *watched != resource || watch.send(Ok(line.clone())).is_ok());
    }

    fn answer(&mut self, uri: &Uri) -> Answer {
        let query = uri.query().unwrap_or_default();
        let parts: Vec<_> = uri.path().rsplit('/').collect();
        let (resource, selector) = match parts[..] {
            ["runners", "services", "ns", ..] => (SERVICES, ""),
            [SLICES, "ns", ..] => (SLICES, "labelSelector=kubernetes.io%2Fservice-name%3Drunners"),
            [ENDPOINTS, "ns", ..] => (ENDPOINTS, "fieldSelector=metadata.name%3Drunners"),
            _ => panic!("{uri}"),
        };
        assert!(query.contains(selector), "{uri}");
        let watches = if query.contains("watch=true") { "watch" } else { "list" };
        let verb = if resource == SERVICES { "get" } else { watches };
        self.asked.push((Instant::now(), format!("{verb} {resource}")));
        match self.down {
            Some(Down::Refuses) => return ready(Err(io::ErrorKind::ConnectionRefused.into())).boxed(),
            Some(Down::Hangs) => return pending().boxed(),
            None if self.forbidden.contains(&(verb, resource)) => {
                return whole(403, &status(403, "Forbidden"));
            }
            None => {}
        }
        let mut objects =
            self.objects.iter().filter(|((of, _), _)| *of == resource).map(|(_, object)| object);
        match verb {
            "get" => match objects.next_back() {
                Some(object) => whole(200, object),
                None => whole(404, &status(404, "NotFound")),
            },
            "list" => {
                let metadata = json!({"resourceVersion": self.version.to_string()});
                whole(200, &json!({"metadata": metadata, "items": objects.collect::<Vec<_>>()}))
            }
            _ => {
                assert!(query.contains("timeoutSeconds=60"), "{query}");
                let (sender, receiver) = mpsc::unbounded_channel();
                if !self.watches_end {
                    let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
                    let since: u64 = since.unwrap().parse().unwrap();
                    for object in objects {
                        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                        if version.parse::<u64>().unwrap() > since {
                            let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
                            let _ = sender.send(Ok(line.into()));
                        }
                    }
                    self.watches.push((resource, sender));
                }
                let frames = stream::unfold(receiver, |mut receiver| async {
                    receiver.recv().await.map(|bytes| (bytes.map(Frame::data), receiver))
                });
                ready(Ok(Response::new(StreamBody::new(frames).boxed_unsync()))).boxed()
            }
        }
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code,
    })
}

fn whole(code: u16, value: &Value) -> Answer {
    let body = Full::from(value.to_string()).map_err(|never: Infallible| match never {}).boxed_unsync();
    ready(Ok(Response::builder().status(code).body(body).unwrap())).boxed()
}
