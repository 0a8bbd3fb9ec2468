//! The spans of a call as a collector receives them: one tree from the caller to the function. A
//! collector that is unavailable causes only log messages.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, runners_flag};
use prost::Message;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::INPUT;

const EXEC: &str = "example.com/functions/exec:v1";
const POD: &str = "example.com/functions/pod:v1";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
#[derive(Debug, Clone)]
struct Span {
    service: String,
    name: String,
    kind: SpanKind,
    trace: String,
    id: String,
    parent: String,
    attributes: HashMap<String, String>,
}

/// Receives spans by OTLP over HTTP.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    _serving: JoinSet<()>,
}

/// A router and its runner. Each of the two runtimes has a function that prints its parent span.
struct Setup {
    _sandbox: Sandbox,
    router: Server,
    runner: Server,
}

// === impl Collector ===

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let (mut serving, sink) = (JoinSet::new(), Arc::clone(&spans));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let sink = Arc::clone(&sink);
                let receive = service_fn(move |request| receive(Arc::clone(&sink), request));
                let connection = hyper::server::conn::http1::Builder::new();
                connections.spawn(connection.serve_connection(TokioIo::new(stream), receive));
            }
        });
        Self { address, spans, _serving: serving }
    }
}

async fn receive(
    sink: Arc<Mutex<Vec<Span>>>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v1/traces"));
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    assert_eq!(request.headers()["x-tenant"], "porch");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let service = attributes(resource.resource.unwrap().attributes).remove("service.name").unwrap();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        sink.lock().unwrap().extend(spans.map(|span| Span {
            service: service.clone(),
            kind: span.kind(),
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            name: span.name,
            attributes: attributes(span.attributes),
        }));
    }
    Ok(Response::default())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn attributes(attributes: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value| match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.into_iter().map(|one| (one.key, text(one.value.unwrap().value.unwrap()))).collect()
}

// === impl Setup ===

impl Setup {
    /// Starts the servers. They export spans at this interval, in milliseconds.
    async fn start(collector: SocketAddr, interval: &str) -> Self {
        let sandbox = Sandbox::new();
        let script = "echo \"$TRACEPARENT\" >&2; exec cat";
        let mut flags = sandbox.executables(&[(EXEC, script)]);
        flags.extend(sandbox.local_pods(&[(POD, script)]));
        flags.push("--drain-delay=0s".into());
        let traced = |command: &mut Command| {
            command
                .env("OTEL_TRACES_EXPORTER", "otlp")
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"))
                .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=porch")
                .env("OTEL_BSP_SCHEDULE_DELAY", interval);
        };
        let runner = sandbox.server_with("porch-fn-runner", flags, traced).await;
        let flags = ["--drain-delay=0s".to_owned(), runners_flag([runner.address()])];
        let router = sandbox.server_with("porch-fn-router", flags, traced).await;
        router.wait_runners_healthy().await;
        Self { _sandbox: sandbox, router, runner }
    }

    /// Calls `image` as a part of the trace, and returns the parent span that its function got.
    async fn call(&self, image: &str, sampled: bool) -> String {
        let parent = format!("00-{TRACE}-{PARENT}-{:02x}", u8::from(sampled));
        let client = Client::new(self.router.address());
        let answer = client.try_call_with(image, INPUT, None, &[("traceparent", &parent)]).await.unwrap();
        assert_eq!(answer.output(), INPUT);
        answer.log().trim().to_owned()
    }

    /// Terminates both servers, and returns how long that took.
    async fn end(&mut self) -> Duration {
        let began = Instant::now();
        for server in [&mut self.router, &mut self.runner] {
            let ended = timeout(Duration::from_secs(10), server.terminate()).await;
            assert!(ended.expect("the server ends: its last export takes at most two seconds").success());
        }
        began.elapsed()
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_spans_of_a_call_are_one_tree_from_the_caller_to_the_function() {
    let collector = Collector::start().await;
    let mut setup = Setup::start(collector.address, "50").await;
    let called = [(EXEC, "exec", setup.call(EXEC, true).await), (POD, "pod", setup.call(POD, true).await)];
    // If the caller does not sample, the servers pass the trace context on, but export no spans.
    let unsampled = setup.call(EXEC, false).await;
    assert!(unsampled.starts_with(&format!("00-{TRACE}-")) && unsampled.ends_with("-00"), "{unsampled}");
    eventually("10 spans", async || (collector.spans.lock().unwrap().len() >= 10).then_some(())).await;
    setup.end().await;

    let spans = collector.spans.lock().unwrap().clone();
    for (image, runtime, function) in called {
        let only = |what: &str, fits: &dyn Fn(&Span) -> bool| {
            let mut found = spans.iter().filter(|span| fits(span));
            let first = found.next().unwrap_or_else(|| panic!("no {what} in {spans:#?}"));
            assert!(found.next().is_none(), "more than one {what} in {spans:#?}");
            assert_eq!(first.trace, TRACE, "{what}");
            first
        };
        let under = |parent: &Span, name: &str, kind| {
            only(name, &|span| span.parent == parent.id && span.name == name && span.kind == kind)
        };
        let rpc = "evaluator.FunctionEvaluator/EvaluateFunction";
        let routed = only("span of the router", &|span| {
            span.parent == PARENT && span.attributes.get("porch_fn.image").is_some_and(|found| found == image)
        });
        assert_eq!(
            (&*routed.service, &*routed.name, routed.kind),
            ("porch-fn-router", rpc, SpanKind::Server)
        );
        let attempt = under(routed, rpc, SpanKind::Client);
        let ran = under(attempt, rpc, SpanKind::Server);
        let waited = under(ran, "queue wait", SpanKind::Internal);
        let evaluated = match runtime {
            "exec" => under(ran, "evaluation", SpanKind::Internal),
            _ => under(ran, rpc, SpanKind::Client),
        };
        assert_eq!(attempt.service, "porch-fn-router");
        for span in [ran, waited, evaluated] {
            assert_eq!(span.service, "porch-fn-runner");
        }
        assert_eq!(function, format!("00-{TRACE}-{}-01", evaluated.id));
        let address = setup.runner.address().to_string();
        for (span, key, value) in [
            (routed, "rpc.grpc.status_code", "0"),
            (attempt, "rpc.grpc.status_code", "0"),
            (attempt, "server.address", &*address),
            (attempt, "porch_fn.attempt", "1"),
            (attempt, "porch_fn.outcome", "answered"),
            (ran, "porch_fn.image", image),
            (ran, "porch_fn.runtime", runtime),
            (ran, "rpc.grpc.status_code", "0"),
        ] {
            assert_eq!(span.attributes.get(key).map(String::as_str), Some(value), "{key}");
        }
    }
    assert_eq!(spans.len(), 10, "{spans:#?}");
}

/// The trace context is passed on even without an exporter.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_function_gets_its_callers_trace_context() {
    let sandbox = Sandbox::new();
    let script = "echo \"$TRACEPARENT $TRACESTATE $BAGGAGE\" >&2; exec cat";
    let runner = sandbox.runner(sandbox.local_pods(&[(POD, script)])).await;
    let router = sandbox.router(&[&runner], &[]).await;
    let client = Client::new(router.address());
    let parent = format!("00-{TRACE}-{PARENT}-01");
    for (sent, seen) in [(&*parent, format!("{parent} a=1 user=x\n")), ("nonsense", "  \n".to_owned())] {
        let metadata = [("traceparent", sent), ("tracestate", "a=1"), ("baggage", "user=x")];
        let answer = client.try_call_with(POD, INPUT, None, &metadata).await.unwrap();
        assert_eq!(answer.output(), INPUT);
        assert_eq!(answer.log(), seen);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_unavailable_collector_delays_neither_calls_nor_the_exit() {
    // This listener never accepts: clients can connect, but never get an answer.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = "127.0.0.1:1".parse().unwrap();
    // With the silent collector, the servers still wait for its answer when they get SIGTERM.
    for (what, collector) in [("silent", silent.local_addr().unwrap()), ("closed", closed)] {
        let mut setup = Setup::start(collector, "1").await;
        let began = Instant::now();
        for _ in 0..20 {
            setup.call(EXEC, true).await;
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
        let ended = setup.end().await;
        figure(&format!("collector {what}: 20 calls in {took:.0?}, both servers ended in {ended:.1?}"));
        for server in [&setup.router, &setup.runner] {
            let log = server.log();
            let logged = log.matches("the collector does not accept spans").count();
            assert!(logged <= 1, "{what}: {log}");
            assert!(log.contains("the last spans were not sent") || logged == 1, "{what}: {log}");
        }
    }
}
