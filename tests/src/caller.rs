//! Two clients for tests. [`Caller`] uses tonic, like a client that a user writes. [`RawCaller`]
//! can send any request in any pieces. [`RawCaller`] enforces no limit of the API, so each refusal
//! comes from the server.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Method, Request, StatusCode, Version};
use porch_fn_grpc::{code_of, message_of};
use porch_fn_proto::evaluator::function_evaluator_client::FunctionEvaluatorClient;
use porch_fn_proto::evaluator::{EvaluateFunctionRequest, EvaluateFunctionResponse as Response};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, encode_request, frame};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::fake_runner::{headers, read_body, soon};

/// Larger than every message and header list under test.
const LARGE: u32 = 32 * 1024 * 1024;

/// tonic's client on one connection. Its size limits are higher than those under test.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For other services on the same connection, such as gRPC health.
    pub channel: Channel,
}

impl Caller {
    pub async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
        let endpoint = endpoint.http2_max_header_list_size(LARGE).initial_stream_window_size(LARGE);
        Self { channel: soon("a connection", endpoint.connect()).await.expect("a router") }
    }

    /// Calls `image` without a deadline.
    pub async fn evaluate(&self, image: &str, package: impl Into<Bytes>) -> Result<Response, Status> {
        self.send(request(image, package)).await
    }

    pub async fn send(&self, request: EvaluateFunctionRequest) -> Result<Response, Status> {
        let mut client = FunctionEvaluatorClient::new(self.channel.clone())
            .max_decoding_message_size(LARGE as usize)
            .max_encoding_message_size(LARGE as usize);
        soon("an answer", client.evaluate_function(request)).await.map(tonic::Response::into_inner)
    }

    /// Calls `image`, and returns the name of the fake runner that echoed the call.
    pub async fn runner_of(&self, image: &str) -> String {
        self.try_runner_of(image).await.expect("an echo")
    }

    /// Like [`runner_of`](Self::runner_of), for a call that may fail.
    pub async fn try_runner_of(&self, image: &str) -> Result<String, Status> {
        let answer = self.evaluate(image, "package").await?;
        assert_eq!(answer.resource_list, "package");
        Ok(String::from_utf8(answer.log.to_vec()).expect("a name"))
    }

    /// Starts a call of `image`. Its result is the name of the fake runner that echoed it.
    pub fn spawn(&self, image: &str) -> JoinHandle<Result<String, Status>> {
        let (caller, image) = (self.clone(), image.to_owned());
        tokio::spawn(async move { caller.try_runner_of(&image).await })
    }
}

pub fn request(image: &str, package: impl Into<Bytes>) -> EvaluateFunctionRequest {
    let (resource_list, image) = (package.into(), image.to_owned());
    EvaluateFunctionRequest { resource_list, image, ..EvaluateFunctionRequest::default() }
}

/// An encoded request with gRPC's prefix.
pub fn framed(image: &str, package: impl Into<Bytes>) -> Bytes {
    frame(encode_request(Chunks::from(package.into()), image, "")).contiguous()
}

/// An HTTP/2 connection without a gRPC library.
#[derive(Debug)]
pub struct RawCaller {
    sender: SendRequest<Bytes>,
    address: SocketAddr,
}

/// A call that has begun. Its request may be incomplete. Dropping the call resets the stream.
#[derive(Debug)]
pub struct RawCall {
    response: ResponseFuture,
    body: SendStream<Bytes>,
}

#[derive(Debug)]
pub struct RawAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The content of all DATA frames.
    pub body: Bytes,
    /// `None` for a "trailers-only" answer.
    pub trailers: Option<HeaderMap>,
}

impl RawCaller {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = soon("a connection", TcpStream::connect(address)).await.expect("a router");
        let handshake = h2::client::Builder::new()
            .initial_window_size(LARGE)
            .initial_connection_window_size(LARGE)
            .max_header_list_size(LARGE)
            .handshake(stream);
        let (sender, connection) = soon("a handshake", handshake).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender, address }
    }

    /// The headers of a call to `EvaluateFunction`.
    pub fn head(&self) -> Request<()> {
        let uri = format!("http://{}{EVALUATE_FUNCTION_PATH}", self.address);
        let mut request = Request::builder().method(Method::POST).version(Version::HTTP_2).uri(uri);
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        request.headers_mut().expect("valid headers").extend(headers(&fields));
        request.body(()).expect("a request")
    }

    /// Sends a call's headers.
    pub async fn begin(&self, head: Request<()>) -> RawCall {
        let sender = soon("a stream", self.sender.clone().ready()).await;
        let sent = sender.expect("an open connection").send_request(head, false);
        let (response, body) = sent.expect("a valid request");
        RawCall { response, body }
    }

    /// Makes a whole call, with additional headers.
    pub async fn call(&self, fields: &[(&'static str, &str)], body: Bytes) -> RawAnswer {
        let mut head = self.head();
        head.headers_mut().extend(headers(fields));
        let mut call = self.begin(head).await;
        call.send(body, true);
        call.answer().await
    }
}

impl RawCall {
    /// Sends a piece of the body. `end` marks the last piece.
    pub fn send(&mut self, piece: Bytes, end: bool) {
        self.body.send_data(piece, end).expect("an open stream");
    }

    /// Sends a piece of the body on a stream that may be closed.
    pub fn try_send(&mut self, piece: Bytes) -> Result<(), h2::Error> {
        self.body.send_data(piece, false)
    }

    pub fn cancel(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }

    /// Waits for the answer. The request need not be complete.
    pub async fn answer(self) -> RawAnswer {
        soon("an answer", self.try_answer()).await.expect("an answer")
    }

    /// Waits for the answer, or for a reset of the stream or the end of the connection.
    pub async fn try_answer(self) -> Result<RawAnswer, h2::Error> {
        let (head, body) = self.response.await?.into_parts();
        let (body, trailers) = read_body(body).await?;
        Ok(RawAnswer { status: head.status, headers: head.headers, body, trailers })
    }
}

impl RawAnswer {
    /// The headers or trailers that contain the status.
    pub fn status_headers(&self) -> &HeaderMap {
        self.trailers.as_ref().unwrap_or(&self.headers)
    }

    pub fn code(&self) -> Code {
        // gRPC has its own status. Only what is no call of gRPC has one of HTTP as well.
        let of_no_call =
            [StatusCode::BAD_REQUEST, StatusCode::METHOD_NOT_ALLOWED, StatusCode::UNSUPPORTED_MEDIA_TYPE];
        assert!(self.status == StatusCode::OK || of_no_call.contains(&self.status), "{}", self.status);
        code_of(self.status_headers()).expect("a grpc-status")
    }

    pub fn message(&self) -> String {
        message_of(self.status_headers())
    }
}
