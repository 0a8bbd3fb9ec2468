//! Spans of calls, with the names and attributes of OpenTelemetry's gRPC instrumentation, which
//! Porch uses.
//!
//! This module needs only OpenTelemetry's API. The wrapper-server does not use the SDK, because
//! every function pod gets a copy of that binary. `tracing`'s spans are not used, because the
//! log's subscriber would create them even for calls without tracing.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use opentelemetry::global::{BoxedTracer, ObjectSafeTracer};
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use porch_fn_text::cut;
use tonic::Code;

use crate::trace_context::{is_traced, set_parent};

/// Attribute: the function's image. A runner sets the image that it runs. A router sets the shard
/// key, from which it computes the runner.
pub const IMAGE: &str = "porch_fn.image";
/// Name of the stage in which a call waits for a pod or for the exec runtime.
pub const QUEUE_WAIT: &str = "queue wait";
/// Attribute of [`QUEUE_WAIT`]: how long each phase of the pod's start took, if the call waited for it.
pub const POD_START: &str = "porch_fn.pod_start";
/// Name of the stage in which the function's process runs.
pub const EVALUATION: &str = "evaluation";
/// Longest text of an attribute, in bytes. Some texts are caller input.
const MAX_TEXT: usize = 512;
/// The service and the method of the calls that have spans.
const SERVICE: &str = "evaluator.FunctionEvaluator";
const METHOD: &str = "EvaluateFunction";
const NAME: &str = "evaluator.FunctionEvaluator/EvaluateFunction";

/// Creates the spans of a server.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<BoxedTracer>);

/// A span. The default does nothing: it stands for a call without a span. All clones are the same
/// span, which ends with [`ended`](Self::ended) or when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct Span(Option<Recorded>);

#[derive(Debug, Clone)]
struct Recorded {
    tracer: Tracer,
    kind: SpanKind,
    context: Context,
}

// === impl Tracer ===

impl Tracer {
    /// Creates spans with `tracer`.
    pub fn new(tracer: impl ObjectSafeTracer + Send + Sync + 'static) -> Self {
        Self(Arc::new(BoxedTracer::new(Box::new(tracer))))
    }

    /// Begins the span of a call that arrived `age` ago with `headers`.
    pub fn begin(&self, headers: &HeaderMap, age: Duration) -> Span {
        let mut parent = Context::new();
        if let Some(remote) = remote_parent(headers) {
            parent = parent.with_remote_span_context(remote);
        }
        let now = SystemTime::now();
        let started = now.checked_sub(age).unwrap_or(now);
        self.span(SpanKind::Server, self.rpc(SpanKind::Server).with_start_time(started), &parent)
    }

    fn rpc(&self, kind: SpanKind) -> SpanBuilder {
        let attributes = [("rpc.system", "grpc"), ("rpc.service", SERVICE), ("rpc.method", METHOD)];
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
        self.0.span_builder(NAME).with_kind(kind).with_attributes(attributes)
    }

    fn span(&self, kind: SpanKind, builder: SpanBuilder, parent: &Context) -> Span {
        let context = parent.with_span(self.0.build_with_context(builder, parent));
        Span(Some(Recorded { tracer: self.clone(), kind, context }))
    }
}

// === impl Span ===

impl Span {
    /// Begins the span of a call to the next hop, with this span as its parent.
    pub fn call(&self) -> Self {
        let Some(Recorded { tracer, context, .. }) = &self.0 else { return Self::default() };
        tracer.span(SpanKind::Client, tracer.rpc(SpanKind::Client), context)
    }

    /// Begins the span of a stage of this call.
    pub fn stage(&self, name: &'static str) -> Self {
        let Some(Recorded { tracer, context, .. }) = &self.0 else { return Self::default() };
        let builder = tracer.0.span_builder(name).with_kind(SpanKind::Internal);
        tracer.span(SpanKind::Internal, builder, context)
    }

    /// Sets an attribute to a text, which is cut if it is long.
    pub fn text(&self, key: &'static str, value: &str) {
        if let Some(Recorded { context, .. }) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, cut(value, MAX_TEXT, "").into_owned()));
        }
    }

    /// Sets an attribute to a number.
    pub fn number(&self, key: &'static str, value: usize) {
        if let Some(Recorded { context, .. }) = &self.0 {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// Ends the span of a call with its status code. A span without a code ends when it is dropped.
    pub fn ended(&self, code: Code) {
        let Some(Recorded { kind, context, .. }) = &self.0 else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        if is_error(kind, code) {
            // The status message is left out: it may contain parts of packages.
            span.set_status(Status::error(""));
        }
        span.end();
    }

    /// Sets this span as the parent in the headers of a call to the next hop.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let Some(Recorded { context, .. }) = &self.0 else { return };
        let span = context.span();
        let own = span.span_context();
        let sampled = own.trace_flags() & TraceFlags::SAMPLED;
        let parent = format!("00-{}-{}-{sampled:02x}", own.trace_id(), own.span_id());
        if let (true, Ok(parent)) = (own.is_valid(), HeaderValue::try_from(parent)) {
            set_parent(parent, headers);
        }
    }

    /// Returns `headers` with this span as the parent.
    pub fn injected<'a>(&self, headers: &'a HeaderMap) -> Cow<'a, HeaderMap> {
        let mut headers = Cow::Borrowed(headers);
        if self.0.is_some() {
            self.inject(headers.to_mut());
        }
        headers
    }
}

/// The caller's span, if the headers name one.
fn remote_parent(headers: &HeaderMap) -> Option<SpanContext> {
    if !is_traced(headers) {
        return None;
    }
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-').skip(1);
    let trace = opentelemetry::TraceId::from_hex(parts.next()?).ok()?;
    let span = opentelemetry::SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?) & TraceFlags::SAMPLED;
    let state = headers.get("tracestate").and_then(|state| TraceState::from_str(state.to_str().ok()?).ok());
    let parent = SpanContext::new(trace, span, flags, true, state.unwrap_or_default());
    parent.is_valid().then_some(parent)
}

/// Whether a call with this code counts as failed, by OpenTelemetry's conventions for gRPC. In a
/// server's span, only codes for which the server is responsible count.
fn is_error(kind: &SpanKind, code: Code) -> bool {
    match code {
        Code::Ok => false,
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => true,
        _ => *kind != SpanKind::Server,
    }
}
