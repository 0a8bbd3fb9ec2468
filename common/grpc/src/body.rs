//! The body type of our servers' answers.

use http::HeaderMap;
use porch_fn_proto::Chunks;
use tokio::time::Instant;

use crate::inflight::Charge;
use crate::outgoing::Outgoing;

/// A body to send.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are messages")]
pub enum Body {
    /// A message as slices, with its trailers.
    Message(Message),
    /// The answers of a health stream, which may last for ever.
    Watch(tonic::body::Body),
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
