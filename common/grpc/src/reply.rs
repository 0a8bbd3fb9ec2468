//! The answer to a unary call, from this hop or from another.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use porch_fn_proto::{Chunks, encode_response, frame};
use tokio::time::Instant;
use tonic::Code;

use super::inflight::{Charge, Refused};
use super::outgoing::Outgoing;
use super::status::{SHED_TRAILER, SHED_VALUE, code_of, set_message};

/// The body of an answer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are messages")]
pub enum Body {
    /// A message as slices.
    Message {
        /// The message with its prefix. It holds the call's [`Charge`].
        framed: Outgoing,
        /// Its trailers, if there are any.
        trailers: Option<HeaderMap>,
        /// The call's deadline.
        deadline: Instant,
    },
    /// The answer of a service of tonic.
    Service {
        /// The messages and the trailers.
        body: tonic::body::Body,
        /// It may last for ever.
        is_watch: bool,
    },
}

/// Response headers, the framed message and trailers.
#[derive(Debug)]
pub struct Reply {
    /// Response headers.
    pub headers: HeaderMap,
    /// The message with its prefix; empty when the call failed.
    pub framed: Chunks,
    /// `None` is gRPC's "trailers-only" answer: the status is among the headers.
    pub trailers: Option<HeaderMap>,
    /// The bytes that are charged for the reply.
    pub charge: Charge,
}

impl Reply {
    /// Success with an `EvaluateFunctionResponse` of these two fields.
    pub fn evaluated(resource_list: Chunks, log: Bytes) -> Self {
        let trailers =
            HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        let framed = frame(encode_response(resource_list, log));
        Self { headers: grpc_headers(), framed, trailers: Some(trailers), charge: Charge::default() }
    }

    /// A failure. A message that is too long is cut.
    pub fn failed(code: Code, message: &str) -> Self {
        let mut headers = grpc_headers();
        set_message(&mut headers, code, message);
        Self { headers, framed: Chunks::default(), trailers: None, charge: Charge::default() }
    }

    /// A failure before any work was done. The previous hop may send the call elsewhere.
    pub fn shed(code: Code, message: &str) -> Self {
        let mut reply = Self::failed(code, message);
        reply.headers.insert(SHED_TRAILER, HeaderValue::from_static(SHED_VALUE));
        reply
    }

    /// The headers that carry the status.
    pub fn status_headers(&self) -> &HeaderMap {
        self.trailers.as_ref().unwrap_or(&self.headers)
    }

    /// Like [`Self::status_headers`], but mutable.
    pub fn status_headers_mut(&mut self) -> &mut HeaderMap {
        self.trailers.as_mut().unwrap_or(&mut self.headers)
    }

    /// The status code. A reply without a code is UNKNOWN, as in gRPC.
    pub fn code(&self) -> Code {
        code_of(self.status_headers()).unwrap_or(Code::Unknown)
    }

    /// Converts the reply to a call with this deadline into an HTTP/2 response.
    pub fn into_response(self, deadline: Instant) -> Response<Body> {
        let framed = Outgoing::new(self.framed, self.charge);
        let mut response = Response::new(Body::Message { framed, trailers: self.trailers, deadline });
        *response.headers_mut() = self.headers;
        response
    }
}

impl From<Refused> for Reply {
    fn from(refused: Refused) -> Self {
        let reply = if refused.is_shed() { Self::shed } else { Self::failed };
        reply(Code::ResourceExhausted, &refused.to_string())
    }
}

fn grpc_headers() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))])
}
