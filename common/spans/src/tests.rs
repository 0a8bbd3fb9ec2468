//! The recorded spans, and the parent that the next hop gets.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{SpanKind, Status, TraceState};
use opentelemetry::{SpanId, TraceId};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SpanData, SpanExporter};
use parking_lot::Mutex;
use porch_fn_telemetry::span::Span;
use tonic::Code;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Collects the spans that have ended.
#[derive(Debug, Default, Clone)]
struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Ended {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

impl Ended {
    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// A tracer that samples like a server with OpenTelemetry's defaults.
fn tracer() -> (Tracer, Ended) {
    let ended = Ended::default();
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
        .with_simple_exporter(ended.clone())
        .build();
    (Tracer::new(provider.tracer("test")), ended)
}

fn headers(traceparent: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_str(traceparent).unwrap());
    headers.insert("tracestate", HeaderValue::from_static("a=1"));
    headers
}

/// The trace id, span id and flags in the `traceparent` that the next hop gets.
fn parent(span: &Span) -> [String; 3] {
    let mut headers = HeaderMap::new();
    span.inject(&mut headers);
    let text = headers["traceparent"].to_str().unwrap();
    assert!(porch_fn_telemetry::trace_context::is_traced(&headers), "{text}");
    let mut parts = text.split('-').skip(1).map(str::to_owned);
    std::array::from_fn(|_| parts.next().unwrap())
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.to_string())
}

#[test]
fn spans_have_the_call_or_the_callers_span_as_parent() {
    let (tracer, ended) = tracer();
    let sent = headers(&format!("00-{TRACE}-{PARENT}-01"));
    let (age, before) = (Duration::from_mins(1), SystemTime::now());
    let server = tracer.begin(&sent, age);
    server.text("image", "f:v1");
    server.text("long", &format!("x{}", "é".repeat(512)));
    let call = server.call();
    call.number("attempt", 2);
    let [trace, next, flags] = parent(&call);
    assert_eq!((&*trace, &*flags), (TRACE, "01"));
    call.ended(Code::NotFound);
    drop(server.stage("wait"));
    server.ended(Code::NotFound);
    // An attribute that is set after the end is ignored.
    server.text("image", "g:v1");
    drop(server);

    let [call, wait, server]: [SpanData; 3] = ended.take().try_into().unwrap();
    for span in [&call, &wait, &server] {
        assert_eq!(span.span_context.trace_id(), TraceId::from_hex(TRACE).unwrap());
        assert_eq!(span.span_context.trace_state(), &TraceState::from_key_value([("a", "1")]).unwrap());
    }
    assert_eq!(server.parent_span_id, SpanId::from_hex(PARENT).unwrap());
    assert_eq!(call.parent_span_id, server.span_context.span_id());
    assert_eq!(wait.parent_span_id, server.span_context.span_id());
    assert_eq!(call.span_context.span_id().to_string(), next);
    assert_eq!(server.name, "evaluator.FunctionEvaluator/EvaluateFunction");
    assert_eq!((call.name, wait.name), (server.name.clone(), "wait".into()));
    let kinds = [SpanKind::Client, SpanKind::Internal, SpanKind::Server];
    assert_eq!([call.span_kind, wait.span_kind.clone(), server.span_kind.clone()], kinds);
    // By OpenTelemetry's conventions, NOT_FOUND is the caller's error: a server's span has no
    // error.
    assert_eq!((call.status, &server.status), (Status::error(""), &Status::Unset));
    assert!(server.start_time >= before - age && server.start_time <= before);
    for (key, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "evaluator.FunctionEvaluator"),
        ("rpc.method", "EvaluateFunction"),
        ("rpc.grpc.status_code", "5"),
        ("image", "f:v1"),
        ("long", &format!("x{}", "é".repeat(255))),
    ] {
        assert_eq!(attribute(&server, key).as_deref(), Some(value), "{key}");
    }
    let attempt = call.attributes.iter().find(|attribute| attribute.key.as_str() == "attempt");
    assert_eq!(attempt.map(|attempt| attempt.value.clone()), Some(2.into()));
}

#[test]
fn a_call_without_a_trace_begins_a_new_one() {
    let (tracer, ended) = tracer();
    for sent in [HeaderMap::new(), headers("00-1-2-01"), headers(&format!("00-{TRACE}-{:016}-01", 0))] {
        let server = tracer.begin(&sent, Duration::ZERO);
        let [trace, ..] = parent(&server);
        server.ended(Code::Unavailable);
        let [span]: [SpanData; 1] = ended.take().try_into().unwrap();
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert_eq!(span.span_context.trace_id().to_string(), trace);
        assert_ne!(trace, TRACE);
        assert_eq!(span.status, Status::error(""));
    }
}

#[test]
fn a_call_that_its_caller_does_not_sample_is_not_recorded() {
    let (tracer, ended) = tracer();
    let server = tracer.begin(&headers(&format!("00-{TRACE}-{PARENT}-00")), Duration::ZERO);
    let call = server.call();
    for span in [&server, &call] {
        let [trace, next, flags] = parent(span);
        assert_eq!((&*trace, &*flags), (TRACE, "00"));
        assert_ne!(next, PARENT);
    }
    call.ended(Code::Ok);
    server.ended(Code::Ok);
    assert!(ended.take().is_empty());
}

#[test]
fn a_dropped_span_ends_without_a_status() {
    let (tracer, ended) = tracer();
    let server = tracer.begin(&HeaderMap::new(), Duration::ZERO);
    let kept = server.clone();
    drop(server.call());
    let call = ended.take();
    assert_eq!(call.len(), 1);
    assert_eq!(attribute(&call[0], "rpc.grpc.status_code"), None);
    drop(server);
    assert!(ended.take().is_empty(), "the span lives until its last clone is dropped");
    drop(kept);
    assert_eq!(ended.take().len(), 1);
}

#[test]
fn a_service_has_a_name() {
    let name = |given| {
        let resource = resource(given, "porch-fn-runner", "1.2.3");
        let version = resource.get(&"service.version".into()).unwrap();
        assert_eq!(version.as_str(), "1.2.3");
        resource.get(&"service.name".into()).unwrap().to_string()
    };
    assert_eq!(name(None), "porch-fn-runner");
    assert_eq!(name(Some("porch-function-runner")), "porch-function-runner");
}
