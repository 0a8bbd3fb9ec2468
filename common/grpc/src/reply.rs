//! The answer to a unary call, ours or another hop's.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use porch_fn_proto::{Chunks, encode_response, frame};
use tonic::{Code, Status};

use super::body::Body;
use super::inflight::{Charge, Refused};
use super::status::{SHED_TRAILER, SHED_VALUE, code_of, cut_message};

/// Response headers, the framed message and trailers.
#[derive(Debug)]
pub struct Reply {
    /// Response headers.
    pub headers: HeaderMap,
    /// The message with its prefix; empty when the call failed.
    pub framed: Chunks,
    /// `None` is gRPC's "trailers-only" answer: the status is among the headers.
    pub trailers: Option<HeaderMap>,
    /// The bytes that are held for it.
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

    /// Failure. The message is cut to its bound.
    pub fn failed(code: Code, message: &str) -> Self {
        let mut headers = grpc_headers();
        // add_header only fails on metadata that is no header, and this status has none.
        let _ = Status::new(code, cut_message(message)).add_header(&mut headers);
        Self { headers, framed: Chunks::default(), trailers: None, charge: Charge::default() }
    }

    /// Failure before any work was done: the hop before may try another one.
    pub fn shed(code: Code, message: &str) -> Self {
        let mut reply = Self::failed(code, message);
        reply.headers.insert(SHED_TRAILER, HeaderValue::from_static(SHED_VALUE));
        reply
    }

    /// The headers that carry the status.
    pub fn status_headers(&self) -> &HeaderMap {
        self.trailers.as_ref().unwrap_or(&self.headers)
    }

    /// The same, to change.
    pub fn status_headers_mut(&mut self) -> &mut HeaderMap {
        self.trailers.as_mut().unwrap_or(&mut self.headers)
    }

    /// The status code. A reply without one is UNKNOWN, as gRPC has it.
    pub fn code(&self) -> Code {
        code_of(self.status_headers()).unwrap_or(Code::Unknown)
    }

    /// As an HTTP/2 response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::charged(self.framed, self.trailers, self.charge));
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

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Self::failed(status.code(), status.message())
    }
}

fn grpc_headers() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))])
}
