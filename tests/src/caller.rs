//! Two callers of a router. [`Caller`] is tonic's client, as a user would have it. [`RawCaller`]
//! sends any request in any pieces and enforces nothing, so that the answer is the server's own.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Method, Request, StatusCode, Version};
use porch_fn_grpc::{code_of, message_of};
use porch_fn_proto::evaluator::function_evaluator_client::FunctionEvaluatorClient;
use porch_fn_proto::evaluator::{EvaluateFunctionRequest, EvaluateFunctionResponse};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, encode_request, frame};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::fake_runner::{headers, read_body, soon};

/// Above every message and header list under test.
const LARGE: u32 = 32 * 1024 * 1024;

/// tonic's client on one connection, whose size limits are out of the way.
#[derive(Clone, Debug)]
pub struct Caller {
    channel: Channel,
}

impl Caller {
    pub async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
        let endpoint = endpoint.http2_max_header_list_size(LARGE).initial_stream_window_size(LARGE);
        Self { channel: soon("a connection", endpoint.connect()).await.expect("a router") }
    }

    /// tonic's channel, for other services.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Runs the function of `image` on `package`, without a deadline.
    pub async fn evaluate(
        &self,
        image: &str,
        package: impl Into<Bytes>,
    ) -> Result<Response<EvaluateFunctionResponse>, Status> {
        self.send(tonic::Request::new(request(image, package))).await
    }

    /// Sends `request` with the metadata and deadline it has.
    pub async fn send(
        &self,
        request: tonic::Request<EvaluateFunctionRequest>,
    ) -> Result<Response<EvaluateFunctionResponse>, Status> {
        let mut client = FunctionEvaluatorClient::new(self.channel())
            .max_decoding_message_size(LARGE as usize)
            .max_encoding_message_size(LARGE as usize);
        soon("an answer", client.evaluate_function(request)).await
    }

    /// The name of the fake runner that echoed a call of `image`.
    pub async fn runner_of(&self, image: &str) -> String {
        self.try_runner_of(image).await.expect("an echo")
    }

    /// The same of a call that may fail.
    ///
    /// # Errors
    /// The status that the call ended with.
    pub async fn try_runner_of(&self, image: &str) -> Result<String, Status> {
        let answer = self.evaluate(image, "package").await?.into_inner();
        assert_eq!(answer.resource_list, "package");
        Ok(String::from_utf8(answer.log.to_vec()).expect("a name"))
    }

    /// Begins a call of `image`, which ends with the name of the fake runner that echoed it.
    pub fn spawn(&self, image: &str) -> JoinHandle<Result<String, Status>> {
        let (caller, image) = (self.clone(), image.to_owned());
        tokio::spawn(async move { caller.try_runner_of(&image).await })
    }
}

/// A request for one run.
pub fn request(image: &str, package: impl Into<Bytes>) -> EvaluateFunctionRequest {
    let (resource_list, image) = (package.into(), image.to_owned());
    EvaluateFunctionRequest { resource_list, image, ..EvaluateFunctionRequest::default() }
}

/// The same as it goes over the wire, with its prefix.
pub fn framed(image: &str, package: impl Into<Bytes>) -> Bytes {
    frame(encode_request(Chunks::from(package.into()), image, "")).contiguous()
}

/// A bare HTTP/2 connection.
#[derive(Debug)]
pub struct RawCaller {
    sender: SendRequest<Bytes>,
    address: SocketAddr,
}

/// A call whose request may not be complete yet. Dropping it resets the stream.
#[derive(Debug)]
pub struct RawCall {
    response: ResponseFuture,
    body: SendStream<Bytes>,
}

#[derive(Debug)]
pub struct RawAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// All DATA frames.
    pub body: Bytes,
    /// `None` in a "trailers-only" answer.
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

    /// The head of a gRPC call of the evaluator.
    pub fn head(&self) -> Request<()> {
        let uri = format!("http://{}{EVALUATE_FUNCTION_PATH}", self.address);
        let mut request = Request::builder().method(Method::POST).version(Version::HTTP_2).uri(uri);
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        request.headers_mut().expect("no error so far").extend(headers(&fields));
        request.body(()).expect("a request")
    }

    /// Begins a call by sending its headers.
    pub async fn begin(&self, head: Request<()>) -> RawCall {
        let sender = soon("a stream", self.sender.clone().ready()).await;
        let sent = sender.expect("an open connection").send_request(head, false);
        let (response, body) = sent.expect("a valid request");
        RawCall { response, body }
    }

    /// A whole call: `head` with more headers, and `body`.
    pub async fn call(&self, fields: &[(&'static str, &str)], body: Bytes) -> RawAnswer {
        let mut head = self.head();
        head.headers_mut().extend(headers(fields));
        let mut call = self.begin(head).await;
        call.send(body, true);
        call.answer().await
    }
}

impl RawCall {
    /// Sends a piece of the body, the last one with `end`.
    pub fn send(&mut self, piece: Bytes, end: bool) {
        self.body.send_data(piece, end).expect("an open stream");
    }

    /// The same, of a stream that may be closed.
    pub fn try_send(&mut self, piece: Bytes) -> Result<(), h2::Error> {
        self.body.send_data(piece, false)
    }

    pub fn cancel(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }

    /// The answer, also to a request that is not complete.
    pub async fn answer(self) -> RawAnswer {
        soon("an answer", self.try_answer()).await.expect("an answer, not a broken stream")
    }

    /// The answer, unless the stream is reset or the connection ends.
    pub async fn try_answer(self) -> Result<RawAnswer, h2::Error> {
        let (head, body) = self.response.await?.into_parts();
        let (body, trailers) = read_body(body).await?;
        Ok(RawAnswer { status: head.status, headers: head.headers, body, trailers })
    }
}

impl RawAnswer {
    /// The headers that contain the status.
    pub fn status_headers(&self) -> &HeaderMap {
        self.trailers.as_ref().unwrap_or(&self.headers)
    }

    pub fn code(&self) -> Code {
        assert_eq!(self.status, StatusCode::OK, "gRPC has its own status");
        code_of(self.status_headers()).expect("a grpc-status")
    }

    pub fn message(&self) -> String {
        message_of(self.status_headers())
    }
}
