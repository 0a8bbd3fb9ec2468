//! The server side of a unary call: limits, deadline and compression before the handler, one place for
//! all three of our servers.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, FrameError, PREFIX_LEN};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;

use super::body::Body;
use super::compression::{InflateError, inflate};
use super::inflight::{Charge, Inflight};
use super::receive::{ReceiveError, receive};
use super::reply::Reply;
use super::status::{header_bytes, set_load};
use super::timeout::parse_timeout;
use porch_fn_lifecycle::health::Health;
use porch_fn_telemetry::span::{Span, Tracer};

/// A call whose message is in.
#[derive(Debug)]
pub struct Call {
    /// Request headers as they came.
    pub headers: HeaderMap,
    /// The message with its prefix, byte for byte as it came: what a hop forwards.
    pub framed: Chunks,
    /// The message without prefix, inflated if it was compressed: what a hop reads.
    pub message: Chunks,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// What is held for it. The hop that learns its image claims it.
    pub charge: Charge,
    /// Its span, under which `headers` have the next hop's.
    pub span: Span,
    /// With [`Options::places`]: its place, to be held for as long as anything of it is.
    pub place: Option<Place>,
}

/// One of the [`Places`] of a server.
pub type Place = OwnedSemaphorePermit;

/// How many calls a server takes at once. Further ones are refused at their headers, so that
/// their messages are not held.
#[derive(Debug, Clone)]
pub struct Places {
    free: Arc<Semaphore>,
    refusal: Arc<str>,
}

impl Places {
    /// So many places (zero counts as one), and what a caller reads who gets none. The hop before may try elsewhere.
    pub fn new(count: usize, refusal: impl Into<Arc<str>>) -> Self {
        let count = count.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(count)), refusal: refusal.into() }
    }

    fn take(&self) -> Option<Place> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    fn refuse(&self) -> Reply {
        Reply::shed(Code::ResourceExhausted, &self.refusal)
    }
}

impl Call {
    /// Takes the message out, for a hop that only reads it and then forwards `framed`.
    pub fn take_message(&mut self) -> Chunks {
        // What was inflated shares nothing with what is forwarded, and was charged on top of it.
        if self.framed.parts().first().is_some_and(|part| part[0] == 1) {
            self.charge.shrink(self.message.len());
        }
        std::mem::take(&mut self.message)
    }
}

/// What a server does with a call.
pub trait Evaluate: Send + Sync + 'static {
    /// Answers one call. The future is dropped at the deadline and when the caller goes away, and must
    /// then let go of everything it started.
    fn evaluate(&self, call: Call) -> impl Future<Output = Reply> + Send;
}

/// Hears of calls that have ended.
pub trait Observe: fmt::Debug + Send + Sync {
    /// How it ended, the sizes in bytes of request (inflated) and answer where there were any, and how long it took.
    fn ended(&self, code: Code, request: Option<usize>, response: Option<usize>, took: Duration);
}

/// How long a caller may send nothing of its message.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// What a caller reads whose deadline was further away than is allowed.
const MAX_TIMEOUT_TEXT: &str = "no answer within --max-timeout, which bounds all calls";

/// Limits of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Largest message in bytes (`--max-request-body-size`).
    pub max_message: usize,
    /// How long a call may take whose caller set no deadline.
    pub default_timeout: Duration,
    /// What a caller reads when that time is up: names the flag.
    pub default_timeout_text: &'static str,
    /// How long a call may take whatever its caller says (`--max-timeout`).
    pub max_timeout: Duration,
    /// What all messages may hold. `None` sets no limit.
    pub inflight: Option<Arc<Inflight>>,
    /// How many calls there may be at once. `None` sets no limit.
    pub places: Option<Places>,
    /// Whether answers say how many calls are in flight.
    pub tell_load: bool,
    /// Who hears of the calls.
    pub observer: Option<Arc<dyn Observe>>,
    /// Who makes their spans.
    pub tracer: Option<Arc<dyn Tracer>>,
}

/// Routes requests to the evaluator or to health.
#[derive(Debug)]
pub struct Server<E> {
    evaluator: Arc<E>,
    health: HealthServer<Health>,
    options: Options,
    calls: AtomicUsize,
}

impl<E: Evaluate> Server<E> {
    /// A server for `evaluator` that also answers for `health`.
    pub fn new(evaluator: Arc<E>, health: &Health, options: Options) -> Arc<Self> {
        Arc::new(Self { evaluator, health: health.service(), options, calls: AtomicUsize::new(0) })
    }

    /// Answers one HTTP/2 request.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == EVALUATE_FUNCTION_PATH {
            let calls = Entered::new(&self.calls);
            let mut seen = Seen::new(self.options.observer.as_deref());
            let mut reply = self.call(request, &mut seen).await;
            seen.answered(&reply);
            if self.options.tell_load {
                set_load(reply.status_headers_mut(), calls.others());
            }
            reply.into_response()
        } else if path.starts_with("/grpc.health.v1.Health/") {
            let Ok(response) =
                self.health.clone().call(request).await.map_err(|never: Infallible| match never {});
            response.map(Body::from)
        } else {
            let text = "unknown method; this server has evaluator.FunctionEvaluator/EvaluateFunction and \
                        grpc.health.v1.Health";
            Reply::failed(Code::Unimplemented, text).into_response()
        }
    }

    async fn call(&self, request: Request<Incoming>, seen: &mut Seen<'_>) -> Reply {
        let started = seen.started;
        let (head, body) = request.into_parts();
        if head.method != Method::POST || !is_grpc(&head.headers) {
            let text = "not a gRPC call: POST with content-type application/grpc is expected";
            return Reply::failed(Code::Internal, text);
        }
        let asked = parse_timeout(&head.headers);
        let Options { max_timeout, default_timeout, default_timeout_text, .. } = self.options;
        let (time, time_is_up) = match asked {
            None if default_timeout > max_timeout => (max_timeout, MAX_TIMEOUT_TEXT),
            None => (default_timeout, default_timeout_text),
            Some(asked) if asked > max_timeout => (max_timeout, MAX_TIMEOUT_TEXT),
            Some(asked) => (asked, DEADLINE_TEXT),
        };
        let deadline = started + time;
        let answer = async {
            let mut place = None;
            if let Some(places) = &self.options.places {
                place = places.take();
                if place.is_none() {
                    return places.refuse();
                }
            }
            let Read { framed, message, charge } = match self.read(&head.headers, body).await {
                Ok(read) => read,
                Err(reply) => {
                    self.trace(&head.headers, seen);
                    return reply;
                }
            };
            let mut headers = head.headers;
            if message.is_empty() {
                // A router's question whether this server answers: nobody's call.
                seen.observer = None;
            } else {
                seen.request = Some(message.len());
                self.trace(&headers, seen);
                seen.span.inject(&mut headers);
            }
            let call = Call { headers, framed, message, deadline, charge, span: seen.span.clone(), place };
            // Boxed: as long as its message is not in, a call holds little.
            Box::pin(self.evaluator.evaluate(call)).await
        };
        let answered = timeout_at(deadline, answer).await;
        answered.unwrap_or_else(|_| Reply::failed(Code::DeadlineExceeded, time_is_up))
    }

    /// Begins the span of a call.
    fn trace(&self, headers: &HeaderMap, seen: &mut Seen<'_>) {
        if let Some(tracer) = &self.options.tracer {
            seen.span = tracer.begin(headers, seen.started.elapsed());
        }
    }

    async fn read(&self, headers: &HeaderMap, body: Incoming) -> Result<Read, Reply> {
        let limit = self.options.max_message;
        let mut charge = match &self.options.inflight {
            Some(inflight) => inflight.enter(header_bytes(headers))?,
            None => Charge::default(),
        };
        let evicted = charge.evicted();
        let received = tokio::select! {
            received = receive(body, limit, MAX_SILENCE, |arrived| charge.arrived(arrived)) => received.map_err(refuse_body)?,
            refused = evicted => return Err(refused.into()),
        };
        charge.received()?;
        if received.framed.is_empty() {
            return Err(Reply::failed(Code::Internal, "a unary call without a message"));
        }
        let message = received.framed.slice(PREFIX_LEN..received.framed.len());
        let message = if received.compressed {
            if headers.get("grpc-encoding").is_none_or(|encoding| encoding != "gzip") {
                return Err(unknown_encoding());
            }
            // The charge goes along, since nothing ends the thread when the caller goes away.
            let inflated = tokio::task::spawn_blocking(move || {
                let inflated = inflate(&message, limit, &mut charge);
                inflated.map(|plain| (plain, charge))
            });
            let plain;
            (plain, charge) = match inflated.await {
                Ok(Ok(inflated)) => inflated,
                Ok(Err(InflateError::TooLarge(limit))) => return Err(too_large(None, limit)),
                Ok(Err(InflateError::Refused(refused))) => return Err(refused.into()),
                Ok(Err(error)) => return Err(Reply::failed(Code::Internal, &error.to_string())),
                Err(_) => return Err(Reply::failed(Code::Internal, "inflating the message failed")),
            };
            plain.into()
        } else {
            message
        };
        Ok(Read { framed: received.framed, message, charge })
    }
}

/// What came after a call's headers: see [`Call`].
struct Read {
    framed: Chunks,
    message: Chunks,
    charge: Charge,
}

/// A call in flight.
struct Entered<'a>(&'a AtomicUsize);

impl<'a> Entered<'a> {
    fn new(calls: &'a AtomicUsize) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(calls)
    }

    /// The other calls.
    fn others(&self) -> usize {
        self.0.load(Ordering::Relaxed).saturating_sub(1)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What an observer is told of a call at its end. One that is dropped before was given up by its caller.
struct Seen<'a> {
    observer: Option<&'a dyn Observe>,
    started: Instant,
    request: Option<usize>,
    response: Option<usize>,
    code: Code,
    span: Span,
}

impl<'a> Seen<'a> {
    fn new(observer: Option<&'a dyn Observe>) -> Self {
        let (started, span) = (Instant::now(), Span::default());
        Self { observer, started, request: None, response: None, code: Code::Cancelled, span }
    }

    fn answered(&mut self, reply: &Reply) {
        self.code = reply.code();
        self.response = reply.framed.len().checked_sub(PREFIX_LEN);
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        self.span.ended(self.code);
        if let Some(observer) = self.observer {
            observer.ended(self.code, self.request, self.response, self.started.elapsed());
        }
    }
}

/// What grpc-go's servers say at the deadline.
const DEADLINE_TEXT: &str = "context deadline exceeded";

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn refuse_body(error: ReceiveError) -> Reply {
    match error {
        ReceiveError::Frame(FrameError::TooLarge { size, limit }) => too_large(Some(size), limit),
        ReceiveError::Frame(error) => Reply::failed(Code::Internal, &error.to_string()),
        ReceiveError::Refused(refused) => refused.into(),
        ReceiveError::Silent(silence) => {
            let text = format!(
                "nothing of the message came for {silence:?}: the caller, or a proxy before it, stopped sending; retry"
            );
            Reply::failed(Code::DeadlineExceeded, &text)
        }
        // The caller went away; nobody reads this.
        ReceiveError::Body(_) => Reply::failed(Code::Cancelled, "the request broke off"),
    }
}

fn too_large(size: Option<usize>, limit: usize) -> Reply {
    // The first words are grpc-go's. An inflated size is not known: reading stops at the limit.
    let size = size.map_or_else(|| "inflated, more".to_owned(), |size| size.to_string());
    let text = format!(
        "grpc: received message larger than max ({size} vs. {limit}): raise --max-request-body-size on router \
         and runners, and in Porch the flag that must agree with it: --max-request-body-size (v1.5: \
         --function-runner-grpc-max-message-size)"
    );
    Reply::failed(Code::ResourceExhausted, &text)
}

fn unknown_encoding() -> Reply {
    let mut reply = Reply::failed(
        Code::Unimplemented,
        "grpc: the message is compressed in a way this server does not know; gzip and identity are accepted",
    );
    reply.headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip"));
    reply
}
