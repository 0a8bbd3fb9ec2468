//! The body type of our servers' answers and our clients' requests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use porch_fn_proto::Chunks;
use tokio::sync::oneshot;
use tonic::Status;

use super::inflight::{Charge, hold};
use crate::streams::{record_health_check, record_progress};

/// A body to send.
#[derive(Debug)]
pub enum Body {
    /// A message as slices, with its trailers.
    Message(Message),
    /// A body from tonic's generated code, such as a health answer.
    Tonic(tonic::body::Body),
}

/// A message as slices, and its trailers.
#[derive(Debug)]
pub struct Message {
    parts: std::vec::IntoIter<Bytes>,
    trailers: Option<HeaderMap>,
    charge: Charge,
    /// Reports that the last slice has been sent. The body ends only after this report. hyper
    /// passes the last slice to HTTP/2 as soon as there is room for its first byte. Without this
    /// wait, hyper would finish the answer before the caller has read it.
    last_sent: Option<oneshot::Receiver<()>>,
}

/// Answers up to this size, in bytes, end without waiting for `last_sent`. Most answers
/// are that small, and their unread part needs little memory.
const SMALL: usize = 16 * 1024;

impl Body {
    /// Sends `framed` slice by slice, then `trailers` if there are any. Holds `charge` (the call's
    /// share of the bytes in flight) until the last slice has been sent or the stream has ended.
    pub fn message(framed: Chunks, trailers: Option<HeaderMap>, charge: Charge) -> Self {
        let mut last_sent = None;
        let large = framed.len() > SMALL && trailers.is_some();
        let mut parts: Vec<_> = framed.into_iter().collect();
        if large && let Some(last) = parts.pop() {
            let (sent, receiver) = oneshot::channel();
            last_sent = Some(receiver);
            parts.push(hold(last, sent));
        }
        Self::Message(Message { parts: parts.into_iter(), trailers, charge, last_sent })
    }
}

impl Message {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let mut next = self.parts.next();
        if next.is_none()
            && let Some(sent) = &mut self.last_sent
        {
            // The last slice holds the channel's sender, and the sender's drop ends this wait.
            let _ = ready!(Pin::new(sent).poll(context));
            self.last_sent = None;
        }
        record_progress();
        // hyper takes a slice only after it has passed on the previous one. When hyper drops the
        // last slice, it has passed on the whole message. So the last slice holds the charge.
        if self.parts.len() == 0 {
            next = next.map(|last| std::mem::take(&mut self.charge).release_with(last));
        }
        Poll::Ready(next.map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Message(message) => message.poll_frame(context).map(|frame| frame.map(Ok)),
            Self::Tonic(body) => {
                record_health_check();
                Pin::new(body).poll_frame(context)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(Message { parts, trailers, .. }) => parts.len() == 0 && trailers.is_none(),
            Self::Tonic(body) => body.is_end_stream(),
        }
    }
}
