//! A client that uses our own client code. tonic's client would end a call by its own timer, before
//! the server's answer arrives. The tests in `foreign` check what other clients receive.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue};
use porch_fn_grpc::{Charge, Reply, format_timeout, message_of};
use porch_fn_grpc_client::conn::{self, Channel, Connection};
use porch_fn_grpc_client::unary::{self, CallError};
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_proto::evaluator::EvaluateFunctionResponse;
use porch_fn_proto::{Chunks, PREFIX_LEN, encode_request, frame};
use porch_fn_tls::{Files, Gauges};
use prost::Message;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// In bytes, far above every limit under test.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
const OPTIONS: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(20),
    ping: None,
    user_timeout: Duration::from_secs(20),
    keepalive: None,
};

/// One connection to a router, runner or wrapper-server.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub code: Code,
    pub message: String,
    /// The function's stdout.
    pub resource_list: Bytes,
    /// The function's stderr.
    pub log: Bytes,
    /// The trailers, or the headers of a "trailers-only" answer.
    pub trailers: HeaderMap,
}

impl Client {
    /// The client connects at its first call.
    pub fn new(address: SocketAddr) -> Self {
        Self { connection: Connection::new(address.to_string(), OPTIONS, None).expect("an address") }
    }

    /// A client with TLS. It expects a server certificate for `name`. The files are the client's
    /// certificate and key, and the CA's certificate.
    pub fn secured(address: SocketAddr, name: &str, files: [PathBuf; 3]) -> Self {
        let files = files.map(Some);
        let files = Files::of("--tls", files.each_ref(), true).expect("usable files").expect("files");
        let connector = files.connector(Some(name), &Gauges::default(), &mut Tasks::new());
        let connection = Connection::new(address.to_string(), OPTIONS, Some(connector.expect("a name")));
        Self { connection: connection.expect("an address") }
    }

    /// Calls `image` without a deadline, as Porch does.
    pub async fn call(&self, image: &str, input: impl Into<Bytes>) -> Answer {
        self.try_call(image, input, None).await.expect("an answer with a status")
    }

    /// Calls each image, eight at a time. The functions must echo their input.
    pub async fn call_all(&self, images: impl IntoIterator<Item = &String>, input: &'static str) {
        let calls = images.into_iter().map(|image| self.call(image, input));
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(8).collect().await;
        assert!(answers.iter().all(|answer| answer.output() == input));
    }

    /// Calls `image` with a deadline. Only the server enforces it.
    pub async fn call_within(&self, image: &str, input: impl Into<Bytes>, timeout: Duration) -> Answer {
        self.try_call(image, input, Some(timeout)).await.expect("an answer with a status")
    }

    /// Calls `image`. Dropping the future cancels the call. An error means that the connection was
    /// lost.
    pub async fn try_call(
        &self,
        image: &str,
        input: impl Into<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Answer, CallError> {
        self.try_call_with(image, input, timeout, &[]).await
    }

    pub async fn try_call_with(
        &self,
        image: &str,
        input: impl Into<Bytes>,
        timeout: Option<Duration>,
        metadata: &[(&'static str, &str)],
    ) -> Result<Answer, CallError> {
        let request = frame(encode_request(Chunks::from(input.into()), image, ""));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        for &(name, value) in metadata {
            headers.insert(name, value.parse().expect("a header value"));
        }
        if let Some(timeout) = timeout {
            format_timeout(&mut headers, timeout);
        }
        unary::call(&self.connection, || headers.clone(), &request, MAX_ANSWER, &Charge::default())
            .await
            .map(Answer::from)
    }

    /// The health of a service.
    pub async fn health(&self, name: &str) -> Result<ServingStatus, Status> {
        let sender =
            self.connection.sender().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = HealthClient::with_origin(Channel(sender), self.connection.origin().clone());
        let answer = client.check(HealthCheckRequest { service: name.to_owned() }).await?;
        Ok(answer.get_ref().status())
    }
}

impl Answer {
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log).into_owned()
    }

    /// Asserts that the call succeeded, and returns its resource list.
    #[track_caller]
    pub fn output(&self) -> &Bytes {
        assert_eq!((self.code, self.message.as_str()), (Code::Ok, ""));
        &self.resource_list
    }

    #[track_caller]
    pub fn assert_failed(&self, code: Code, message: &str) {
        assert_eq!((self.code, self.message.as_str()), (code, message));
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        let status = reply.status_headers();
        let message = if reply.framed.is_empty() {
            EvaluateFunctionResponse::default()
        } else {
            let message = reply.framed.slice(PREFIX_LEN..reply.framed.len()).contiguous();
            EvaluateFunctionResponse::decode(message).expect("an EvaluateFunctionResponse")
        };
        Self {
            code: reply.code(),
            message: message_of(status),
            trailers: status.clone(),
            resource_list: message.resource_list,
            log: message.log,
        }
    }
}
