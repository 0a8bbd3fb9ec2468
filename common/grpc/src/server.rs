//! The server side of a unary call. Router, runner and wrapper-server use it. It applies limits,
//! deadline and compression before the evaluator runs.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use porch_fn_lifecycle::health::Health;
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, FrameError, PREFIX_LEN, frame};
use porch_fn_telemetry::span::{Span, Tracer};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Code;
use tonic::body::Body as TonicBody;
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;

use crate::Incoming;
use crate::compression::inflate_apart;
use crate::inflight::{Charge, Inflight};
use crate::receive::{ReceiveError, receive};
use crate::reply::{Body, Reply};
use crate::status::{code_of, header_bytes, set_load};
use crate::timeout::parse_timeout;

/// A call whose message is complete.
#[derive(Debug)]
pub struct Call {
    /// Request headers as received.
    pub headers: HeaderMap,
    /// The message with its prefix, exactly as received. A hop forwards these bytes.
    pub framed: Chunks,
    /// The message without prefix, inflated if it was compressed. A hop reads these bytes.
    pub message: Chunks,
    /// When the caller stops waiting for the answer.
    pub deadline: Instant,
    /// The bytes that are charged for the call. When the hop has read the image's name in the
    /// message, it assigns these bytes to the image by [`Charge::claim`].
    pub charge: Charge,
    /// The call's span. `headers` carry it as the parent of the next hop's span.
    pub span: Span,
}

impl Call {
    /// Takes the message out of the call, for a hop that forwards only `framed` afterwards.
    pub fn take_message(&mut self) -> Chunks {
        // An inflated message shares no bytes with `framed`, and was charged separately.
        if self.framed.parts().first().is_some_and(|part| part[0] == 1) {
            self.charge.shrink(self.message.len());
        }
        std::mem::take(&mut self.message)
    }
}

/// What a server does with a call.
pub trait Evaluate: Send + Sync + 'static {
    /// Answers one call. The future is dropped at the deadline and when the caller disconnects. The
    /// drop must end everything that the future has started.
    fn evaluate(&self, call: Call) -> impl Future<Output = Reply> + Send;
}

/// Records calls that have ended.
pub trait Observe: fmt::Debug + Send + Sync {
    /// Records a call that ended with `code`. `request` and `response` are sizes in bytes, or
    /// `None` without a message. For a compressed request, `request` is the inflated size.
    fn ended(&self, code: Code, request: Option<usize>, response: Option<usize>, took: Duration);
}

const GRPC_ENCODING: &str = "grpc-encoding";
/// How long a caller may send nothing of its message.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// Largest message of a service beside the evaluator, in bytes, and the time for its arrival.
const SMALL_MESSAGE: usize = 64 * 1024;
const SMALL_TIME: Duration = Duration::from_secs(5);
/// Error texts for calls that take too long. After the caller's own deadline it is grpc-go's text;
/// after a limit of ours, the text names the flag.
const DEADLINE_TEXT: &str = "context deadline exceeded";
const DEFAULT_TIMEOUT_TEXT: &str =
    "no answer within --request-timeout, which bounds calls without a deadline";
const MAX_TIMEOUT_TEXT: &str = "no answer within --max-timeout, which bounds all calls";

/// Limits of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Largest message in bytes (`--max-request-body-size`).
    pub max_message: usize,
    /// Largest header list in bytes, such as [`crate::MAX_REQUEST_HEADERS`].
    pub max_headers: usize,
    /// How long a call without a deadline may take (`--request-timeout`).
    pub default_timeout: Duration,
    /// How long any call may take (`--max-timeout`).
    pub max_timeout: Duration,
    /// Limits the bytes that the messages of all calls hold together.
    pub inflight: Arc<Inflight>,
    /// Whether answers report how many calls are in flight.
    pub report_load: bool,
    /// Records the calls that have ended.
    pub observer: Option<Arc<dyn Observe>>,
    /// Creates the spans of calls.
    pub tracer: Option<Tracer>,
}

/// Routes requests to the evaluator or to the health service.
#[derive(Debug)]
pub struct Server<E> {
    evaluator: Arc<E>,
    health: HealthServer<Health>,
    options: Options,
    calls: AtomicUsize,
}

impl<E: Evaluate> Server<E> {
    /// A server for `evaluator` that also answers health checks from `health`.
    pub fn new(evaluator: Arc<E>, health: &Health, options: Options) -> Arc<Self> {
        let health = HealthServer::new(health.clone());
        Arc::new(Self { evaluator, health, options, calls: AtomicUsize::new(0) })
    }

    /// Answers one HTTP/2 request.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == EVALUATE_FUNCTION_PATH {
            let mut record = CallRecord::new(&self.calls, self.options.observer.as_deref());
            let (head, body) = request.into_parts();
            let time = match self.admit(&head) {
                Ok(time) => time,
                Err(refusal) => {
                    record.code = code_of(refusal.headers()).unwrap_or(Code::Unknown);
                    return *refusal;
                }
            };
            let Options { max_timeout, default_timeout, .. } = self.options;
            let (time, timeout_text) = match time {
                Some(time) if time <= max_timeout => (time, DEADLINE_TEXT),
                None if default_timeout <= max_timeout => (default_timeout, DEFAULT_TIMEOUT_TEXT),
                _ => (max_timeout, MAX_TIMEOUT_TEXT),
            };
            let deadline = record.started + time;
            let answered = timeout_at(deadline, self.call(head.headers, body, deadline, &mut record)).await;
            let mut reply = answered.unwrap_or_else(|_| Reply::failed(Code::DeadlineExceeded, timeout_text));
            record.code = reply.code();
            record.response = reply.framed.len().checked_sub(PREFIX_LEN);
            if self.options.report_load {
                set_load(reply.status_headers_mut(), self.calls.load(Ordering::Relaxed).saturating_sub(1));
            }
            reply.into_response(deadline)
        } else if path.starts_with("/grpc.health.v1.Health/") {
            Box::pin(self.beside(self.health.clone(), request)).await
        } else {
            let text = "unknown method; this server has evaluator.FunctionEvaluator/EvaluateFunction and \
                        grpc.health.v1.Health";
            *refusal(StatusCode::OK, Code::Unimplemented, text)
        }
    }

    /// Answers a request to a service of tonic, whose messages are small. A request that is not
    /// complete in 5 s is ended.
    pub async fn beside<S>(&self, mut service: S, request: Request<Incoming>) -> Response<Body>
    where
        S: Service<Request<TonicBody>, Response = Response<TonicBody>, Error = Infallible>,
    {
        let (mut head, body) = request.into_parts();
        let time = match self.admit(&head) {
            Ok(time) => time,
            Err(refusal) => return *refusal,
        };
        let read = timeout(SMALL_TIME, self.read(&head.headers, body, SMALL_MESSAGE)).await;
        let (_, message, _charge) = match read.unwrap_or(Err(ReceiveError::Silent(SMALL_TIME))) {
            Ok(read) => read,
            Err(error) => return Reply::from(error).into_response(Instant::now()),
        };
        let is_watch = head.uri.path().ends_with("/Watch");
        // The message is inflated.
        head.headers.remove(GRPC_ENCODING);
        let request = Request::from_parts(head, TonicBody::new(Full::new(frame(message).contiguous())));
        match timeout(time.unwrap_or(Duration::MAX), service.call(request)).await {
            Ok(Ok(response)) => response.map(|body| Body::Service { body, is_watch }),
            Err(_) => *refusal(StatusCode::OK, Code::DeadlineExceeded, DEADLINE_TEXT),
        }
    }

    /// Checks what comes before the message, like grpc-go. Returns the time that the caller waits.
    fn admit(&self, head: &Parts) -> Result<Option<Duration>, Box<Response<Body>>> {
        let Parts { method, uri, headers, .. } = head;
        if !is_grpc(headers) {
            let text = "invalid gRPC request content-type: application/grpc is expected";
            return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument, text));
        }
        if *method != Method::POST {
            let text = format!("received a request with method {method}, which should be POST");
            return Err(refusal(StatusCode::METHOD_NOT_ALLOWED, Code::Internal, &text));
        }
        let limit = self.options.max_headers;
        let size = header_bytes(headers).saturating_add(uri.path().len());
        if size > limit {
            let text = format!("the header list of {size} bytes is larger than the limit of {limit} bytes");
            return Err(refusal(StatusCode::OK, Code::ResourceExhausted, &text));
        }
        parse_timeout(headers)
            .map_err(|error| refusal(StatusCode::BAD_REQUEST, Code::Internal, &error.to_string()))
    }

    async fn call(
        &self,
        mut headers: HeaderMap,
        body: Incoming,
        deadline: Instant,
        record: &mut CallRecord<'_>,
    ) -> Reply {
        let read = self.read(&headers, body, self.options.max_message).await;
        if read.as_ref().is_ok_and(|(_, message, _)| message.is_empty()) {
            // An empty message is a router's probe, which has no span and which the observer does not
            // record.
            record.observer = None;
        } else if let Some(tracer) = &self.options.tracer {
            record.span = tracer.begin(&headers, record.started.elapsed());
        }
        let (framed, message, charge) = match read {
            Ok(read) => read,
            Err(error) => return error.into(),
        };
        record.request = Some(message.len());
        record.span.inject(&mut headers);
        let call = Call { headers, framed, message, deadline, charge, span: record.span.clone() };
        // Boxed, so that a call needs little memory until its message is complete.
        Box::pin(self.evaluator.evaluate(call)).await
    }

    /// Reads [`Call::framed`], [`Call::message`] and [`Call::charge`] of a message of at most `limit`
    /// bytes.
    async fn read(
        &self,
        headers: &HeaderMap,
        body: Incoming,
        limit: usize,
    ) -> Result<(Chunks, Chunks, Charge), ReceiveError> {
        let mut charge = self.options.inflight.enter(header_bytes(headers))?;
        let evicted = charge.evicted();
        let received = tokio::select! {
            received = receive(body, limit, MAX_SILENCE, &mut charge) => received?,
            refused = evicted => return Err(refused.into()),
        };
        charge.received()?;
        if received.framed.is_empty() {
            return Err(ReceiveError::Empty);
        }
        let mut message = received.framed.slice(PREFIX_LEN..received.framed.len());
        if received.compressed {
            match headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes) {
                Some(b"gzip") => {}
                None | Some(b"identity") => return Err(ReceiveError::NoEncoding),
                Some(_) => return Err(ReceiveError::Encoding),
            }
            (message, charge) = inflate_apart(message, limit, charge).await?;
        }
        Ok((received.framed, message, charge))
    }
}

/// Counts a call while it is in flight, and records its end. A call that is dropped without an
/// answer counts as cancelled by its caller.
struct CallRecord<'a> {
    calls: &'a AtomicUsize,
    observer: Option<&'a dyn Observe>,
    started: Instant,
    request: Option<usize>,
    response: Option<usize>,
    code: Code,
    span: Span,
}

impl<'a> CallRecord<'a> {
    fn new(calls: &'a AtomicUsize, observer: Option<&'a dyn Observe>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        let (started, span) = (Instant::now(), Span::default());
        Self { calls, observer, started, request: None, response: None, code: Code::Cancelled, span }
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        self.span.ended(self.code);
        if let Some(observer) = self.observer {
            observer.ended(self.code, self.request, self.response, self.started.elapsed());
        }
    }
}

/// A refusal before the message is read, with its status of HTTP.
fn refusal(http: StatusCode, code: Code, text: &str) -> Box<Response<Body>> {
    let mut response = Reply::failed(code, text).into_response(Instant::now());
    *response.status_mut() = http;
    Box::new(response)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

impl From<ReceiveError> for Reply {
    fn from(error: ReceiveError) -> Self {
        let code = match &error {
            ReceiveError::Refused(refused) => return refused.clone().into(),
            ReceiveError::Frame(FrameError::TooLarge { size, limit }) => {
                return too_large(&size.to_string(), *limit);
            }
            // The size is unknown, because inflation stops at the limit.
            ReceiveError::Inflated(limit) => return too_large("more after decompression", *limit),
            ReceiveError::Silent(_) => Code::DeadlineExceeded,
            // The caller has disconnected and does not receive this text.
            ReceiveError::Body(_) => Code::Cancelled,
            ReceiveError::Encoding => Code::Unimplemented,
            _ => Code::Internal,
        };
        let mut reply = Reply::failed(code, &error.to_string());
        if code == Code::Unimplemented {
            let known = HeaderValue::from_static("identity,gzip");
            reply.headers.insert("grpc-accept-encoding", known);
        }
        reply
    }
}

fn too_large(size: &str, limit: usize) -> Reply {
    // The first words are grpc-go's.
    let text = format!(
        "grpc: received message larger than max ({size} vs. {limit}): raise --max-request-body-size on router \
         and runners, and in Porch the flag that must agree with it: --max-request-body-size (v1.5: \
         --function-runner-grpc-max-message-size)"
    );
    Reply::failed(Code::ResourceExhausted, &text)
}
