//! The answers that a test can set for a fake runner.

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
    /// Answers with the call's package, and the runner's name as `log`.
    Echo,
    Reply(Reply),
    /// Sends the answer when the gate is open.
    Held(Gate, Box<Answer>),
    /// Sends the answer when the headers have arrived, and does not read the message. It works only
    /// as the default answer, because the image is in the message.
    Unread(Box<Answer>),
    /// Starts an echo, and breaks the stream at this point.
    Break(Point, How),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The request has arrived, and nothing is sent.
    Start,
    Headers,
    HalfMessage,
    /// The whole message is sent, but no trailers.
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Cut,
    /// Sends a GOAWAY without error that covers the call, then closes the connection.
    GoAwayThenCut,
    Reset(Reason),
    /// The stream ends without an error.
    End,
}

/// The parts of a response. The fake runner sends them unchanged.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: http::StatusCode,
    pub headers: HeaderMap,
    /// Usually one gRPC message with its length prefix.
    pub body: Bytes,
    /// `None`: the stream ends after the body, or after the headers if the body is empty.
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

    /// A status as gRPC's "trailers-only" answer.
    pub fn status(code: Code, message: &str) -> Self {
        let code = (code as i32).to_string();
        let fields =
            [("content-type", "application/grpc"), ("grpc-status", &code), ("grpc-message", message)];
        Self { headers: headers(&fields), ..Self::default() }
    }

    /// A refusal with the `porch-fn-retry` header, which allows the router to send the call to
    /// another runner.
    pub fn shed(code: Code, message: &str) -> Self {
        let mut reply = Self::status(code, message);
        reply.headers.extend(headers(&[("porch-fn-retry", "shed")]));
        reply
    }

    /// Adds `porch-fn-load`, the runner's number of other calls in flight. By this field, a router
    /// distinguishes a runner's answer from a proxy's error.
    #[must_use]
    pub fn with_load(mut self) -> Self {
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

/// Delays answers until it is opened.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub fn echo(&self) -> Answer {
        Answer::Held(self.clone(), Box::new(Answer::Echo))
    }

    pub(super) async fn wait_open(&self) {
        // The wait cannot fail, because this gate holds the sender.
        let _ = self.0.subscribe().wait_for(|&open| open).await;
    }
}
