//! Spans as OpenTelemetry's gRPC instrumentation makes them, which Porch uses.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanBuilder, SpanKind, Status, TraceContextExt, TraceFlags, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use porch_fn_telemetry::span::{Record, Span, Tracer};
use porch_fn_telemetry::trace_context::is_traced;
use tonic::Code;

/// There is one method.
const SERVICE: &str = "evaluator.FunctionEvaluator";
const METHOD: &str = "EvaluateFunction";
const NAME: &str = "evaluator.FunctionEvaluator/EvaluateFunction";

/// Makes spans of calls.
#[derive(Debug)]
pub(crate) struct Recorder {
    tracer: SdkTracer,
}

/// A span, which ends with this.
#[derive(Debug)]
struct Recorded {
    tracer: SdkTracer,
    kind: SpanKind,
    context: Context,
}

// === impl Recorder ===

impl Recorder {
    pub(crate) fn new(tracer: SdkTracer) -> Self {
        Self { tracer }
    }
}

impl Tracer for Recorder {
    fn begin(&self, headers: &HeaderMap, age: Duration) -> Span {
        let none = Context::new();
        let parent = if is_traced(headers) {
            TraceContextPropagator::new().extract_with_context(&none, &HeaderExtractor(headers))
        } else {
            none
        };
        let now = SystemTime::now();
        let builder =
            rpc(&self.tracer, SpanKind::Server).with_start_time(now.checked_sub(age).unwrap_or(now));
        Recorded::begin(&self.tracer, SpanKind::Server, builder, &parent)
    }
}

// === impl Recorded ===

impl Recorded {
    fn begin(tracer: &SdkTracer, kind: SpanKind, builder: SpanBuilder, parent: &Context) -> Span {
        let span = tracer.build_with_context(builder, parent);
        Span::new(Self { tracer: tracer.clone(), kind, context: parent.with_span(span) })
    }
}

impl Record for Recorded {
    fn call(&self) -> Span {
        Self::begin(&self.tracer, SpanKind::Client, rpc(&self.tracer, SpanKind::Client), &self.context)
    }

    fn stage(&self, name: &'static str) -> Span {
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Internal);
        Self::begin(&self.tracer, SpanKind::Internal, builder, &self.context)
    }

    fn text(&self, key: &'static str, value: &str) {
        self.context.span().set_attribute(KeyValue::new(key, value.to_owned()));
    }

    fn number(&self, key: &'static str, value: i64) {
        self.context.span().set_attribute(KeyValue::new(key, value));
    }

    fn traceparent(&self) -> Option<HeaderValue> {
        let span = self.context.span();
        let context = span.span_context();
        let sampled = context.trace_flags() & TraceFlags::SAMPLED;
        let text = format!("00-{}-{}-{sampled:02x}", context.trace_id(), context.span_id());
        context.is_valid().then(|| HeaderValue::from_str(&text).ok()).flatten()
    }

    fn ended(&self, code: Code) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        if is_error(&self.kind, code) {
            // The call's message stays out: it may have parts of packages.
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

fn rpc(tracer: &SdkTracer, kind: SpanKind) -> SpanBuilder {
    let attributes = [("rpc.system", "grpc"), ("rpc.service", SERVICE), ("rpc.method", METHOD)];
    let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
    tracer.span_builder(NAME).with_kind(kind).with_attributes(attributes)
}

/// Whether a call that ended so failed, as OpenTelemetry's conventions for gRPC have it: a server answers for some of the
/// codes only.
fn is_error(kind: &SpanKind, code: Code) -> bool {
    let servers = matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    servers || (*kind != SpanKind::Server && code != Code::Ok)
}
