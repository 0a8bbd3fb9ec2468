//! The one body type that our servers and clients send.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use porch_fn_proto::Chunks;
use tonic::Status;

use super::inflight::Charge;
use crate::serve::asked_for_more;

/// A message as slices and its trailers, or whatever tonic's generated code produces (health).
#[derive(Debug)]
pub struct Body(Kind);

#[derive(Debug)]
enum Kind {
    Message { parts: std::vec::IntoIter<Bytes>, trailers: Option<HeaderMap>, charge: Charge },
    Tonic(tonic::body::Body),
}

impl Body {
    /// Sends `framed` slice by slice, then `trailers` if there are any.
    pub fn message(framed: Chunks, trailers: Option<HeaderMap>) -> Self {
        Self::charged(framed, trailers, Charge::default())
    }

    /// The same, and holds `charge` until the last slice has been sent or the stream has ended.
    pub fn charged(framed: Chunks, trailers: Option<HeaderMap>, charge: Charge) -> Self {
        Self(Kind::Message { parts: framed.into_iter(), trailers, charge })
    }
}

impl From<tonic::body::Body> for Body {
    fn from(body: tonic::body::Body) -> Self {
        Self(Kind::Tonic(body))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.0 {
            Kind::Message { parts, trailers, charge } => {
                asked_for_more();
                let mut next = parts.next();
                // The next slice is asked for when this one is sent: with the last one gone, all are.
                if parts.len() == 0 {
                    next = next.map(|last| std::mem::take(charge).ride_on(last));
                }
                Poll::Ready(next.map(Frame::data).or_else(|| trailers.take().map(Frame::trailers)).map(Ok))
            }
            Kind::Tonic(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Message { parts, trailers, .. } => parts.len() == 0 && trailers.is_none(),
            Kind::Tonic(body) => body.is_end_stream(),
        }
    }
}
