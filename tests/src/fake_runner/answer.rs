//! What a test can have a fake runner answer.

use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};
use porch_fn_proto::{Chunks, encode_response, frame};
use tokio::sync::watch;
use tonic::Code;

#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Answer {
    /// Its package, with the runner's name as `log`.
    Echo,
    Reply(Reply),
    /// The answer, once the gate is open.
    Held(Gate, Box<Answer>),
    /// The answer, as soon as the headers are there and without reading the message. Only as the
    /// default answer, since the image is in the message.
    Unread(Box<Answer>),
    /// An echo that breaks.
    Break(Point, How),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The request is in, nothing was answered.
    Start,
    Headers,
    HalfMessage,
    /// After the message, before the trailers.
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Cut,
    /// A GOAWAY without error that covers the call, and then the connection is closed.
    GoAwayThenCut,
    Reset(Reason),
    /// The stream ends without an error.
    End,
}

/// A response as it goes over the wire.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: http::StatusCode,
    pub headers: HeaderMap,
    /// The body: one message with its prefix, or anything else.
    pub body: Bytes,
    /// `None` ends the stream with the body, or with the headers if there is none.
    pub trailers: Option<HeaderMap>,
}

impl Reply {
    pub fn ok(resource_list: Bytes, log: &str) -> Self {
        let message = encode_response(Chunks::from(resource_list), Bytes::copy_from_slice(log.as_bytes()));
        Self {
            headers: headers(&[("content-type", "application/grpc")]),
            body: frame(message).contiguous(),
            trailers: Some(headers(&[("grpc-status", "0")])),
            ..Self::default()
        }
    }

    /// A status in gRPC's "trailers-only" form.
    pub fn status(code: Code, message: &str) -> Self {
        let code = (code as i32).to_string();
        let fields =
            [("content-type", "application/grpc"), ("grpc-status", &code), ("grpc-message", message)];
        Self { headers: headers(&fields), ..Self::default() }
    }

    /// A refusal that says that another runner may take the call.
    pub fn shed(code: Code, message: &str) -> Self {
        let mut reply = Self::status(code, message);
        reply.headers.extend(headers(&[("porch-fn-retry", "shed")]));
        reply
    }

    /// With the mark by which a runner's answers are known: how many other calls it has.
    #[must_use]
    pub fn marked(mut self) -> Self {
        let fields = self.trailers.as_mut().unwrap_or(&mut self.headers);
        fields.extend(headers(&[("porch-fn-load", "0")]));
        self
    }
}

pub fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field = |&(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header value"))
    };
    fields.iter().map(field).collect()
}

/// Holds answers back until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub fn echo(&self) -> Answer {
        Answer::Held(self.clone(), Box::new(Answer::Echo))
    }

    pub(super) async fn passed(&self) {
        // Its sender is held here, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|&open| open).await;
    }
}
