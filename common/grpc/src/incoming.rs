//! The body type of our servers' requests and our clients' answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::Frame;

/// A body that arrives. It makes room for the peer's next bytes as soon as it is read.
#[derive(Debug)]
pub struct Incoming(pub RecvStream);

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.0.poll_data(context)) {
            Some(Ok(data)) => {
                // Fails only if more is released than has arrived.
                let _ = self.0.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            // The peer has its answer and does not want the rest of the request.
            Some(Err(error)) if error.reason() == Some(h2::Reason::NO_ERROR) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            // From now on, this is always so.
            None => {
                let trailers = ready!(self.0.poll_trailers(context));
                Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
