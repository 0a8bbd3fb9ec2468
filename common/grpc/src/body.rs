//! The body type of our servers' answers and our clients' requests.

use std::future::poll_fn;

use h2::{Reason, SendStream};
use http::HeaderMap;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use porch_fn_proto::Chunks;
use tokio::time::{Instant, timeout};

use crate::inflight::Charge;
use crate::outgoing::Outgoing;
use crate::unwritten::UNREAD;

/// A body to send.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are messages")]
pub enum Body {
    /// A message as slices, with its trailers.
    Message(Message),
    /// A body from tonic's generated code, such as a health answer. If it has a deadline, all of it
    /// must be sent by then.
    Tonic(tonic::body::Body, Option<Instant>),
}

/// A message as slices, and its trailers.
#[derive(Debug)]
pub struct Message {
    pub(crate) framed: Outgoing,
    pub(crate) trailers: Option<HeaderMap>,
    /// The call's deadline.
    pub(crate) deadline: Instant,
}

impl Body {
    /// Sends `framed`, then `trailers` if there are any. Holds `charge` (the call's share of the
    /// bytes in flight) until the message has been sent or the stream has ended.
    pub fn message(framed: Chunks, trailers: Option<HeaderMap>, charge: Charge, deadline: Instant) -> Self {
        Self::Message(Message { framed: Outgoing::new(framed, charge), trailers, deadline })
    }
}

/// Sends a body of tonic to its end. Bytes are passed on when the peer has room for them. If it makes
/// none for a minute, the stream is reset.
///
/// # Errors
/// When the stream or the connection has ended.
pub async fn send_tonic(
    mut body: tonic::body::Body,
    stream: &mut SendStream<Outgoing>,
) -> Result<(), h2::Error> {
    while !body.is_end_stream() {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(()),
        };
        let Some(frame) = frame else { break };
        // The caller's stream ends without trailers, which is an error for it.
        let Ok(frame) = frame else { break };
        match frame.into_data() {
            Ok(mut data) => {
                while !data.is_empty() {
                    stream.reserve_capacity(data.len());
                    let capacity = poll_fn(|context| stream.poll_capacity(context));
                    let room = match timeout(UNREAD, capacity).await {
                        Ok(Some(room)) => room?,
                        Ok(None) => return Ok(()),
                        Err(_) => {
                            stream.send_reset(Reason::CANCEL);
                            return Ok(());
                        }
                    };
                    stream.send_data(data.split_to(room.min(data.len())).into(), false)?;
                }
            }
            Err(other) => {
                let Ok(trailers) = other.into_trailers() else { continue };
                return stream.send_trailers(trailers);
            }
        }
    }
    stream.send_data(Outgoing::default(), true)
}
