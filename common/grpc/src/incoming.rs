//! The body type of our servers' requests and our clients' answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::Frame;

/// A body that arrives. It makes room for the peer's next bytes as soon as it is read.
#[derive(Debug)]
pub struct Incoming {
    stream: RecvStream,
    is_data_over: bool,
}

impl From<RecvStream> for Incoming {
    fn from(stream: RecvStream) -> Self {
        Self { stream, is_data_over: false }
    }
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.is_data_over {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // Fails only if more is released than has arrived.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // The peer has its answer and does not want the rest of the request.
                Some(Err(error)) if error.reason() == Some(h2::Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.is_data_over = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context));
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}
