//! The metrics of calls, under the same names as in Porch's function runner, so that existing
//! dashboards work. They are the names of OpenTelemetry's gRPC instrumentation (`rpc.server.*`,
//! `rpc.client.*`), as its Prometheus exporter writes them.
//!
//! Units and buckets are OpenTelemetry's. There is only one method, so label values are few.

use std::time::Duration;

use porch_fn_grpc::{Observe, Reply};
use porch_fn_grpc_client::unary::CallError;
use porch_fn_proto::{Chunks, PREFIX_LEN};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use scopeguard::guard;
use tokio::time::Instant;
use tonic::Code;

use crate::metrics::ByCode;

/// Buckets of every histogram: OpenTelemetry's defaults.
const BUCKETS: [f64; 15] =
    [0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0];

/// Histograms by status code.
#[derive(Debug)]
struct Histograms {
    family: Family<[(&'static str, String); 4], Histogram>,
    by_code: ByCode<Histogram>,
}

/// Histograms of the calls' durations and sizes, by status code.
#[derive(Debug)]
pub struct RpcMetrics {
    duration: Histograms,
    /// Sizes of requests, then sizes of answers.
    sizes: [Histograms; 2],
    /// Requests per call, then answers per call.
    counts: [Histograms; 2],
}

// === impl Histograms ===

impl Histograms {
    fn new() -> Self {
        let family = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        Self { family, by_code: ByCode::default() }
    }

    fn observe(&self, code: Code, value: f64) {
        let histogram = self.by_code.get_or_create(code, || {
            self.family.get_or_create_owned(&[
                ("rpc_system", "grpc".to_owned()),
                ("rpc_service", "evaluator.FunctionEvaluator".to_owned()),
                ("rpc_method", "EvaluateFunction".to_owned()),
                ("rpc_grpc_status_code", i32::from(code).to_string()),
            ])
        });
        histogram.observe(value);
    }
}

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Registers the metrics in `registry`, which must have no prefix. `prefix` is `rpc_server` for
    /// incoming calls and `rpc_client` for outgoing calls.
    pub fn new(registry: &mut Registry, prefix: &str) -> Self {
        let registry = registry.sub_registry_with_prefix(prefix);
        let milliseconds = Unit::Other("milliseconds".to_owned());
        let duration = Histograms::new();
        registry.register_with_unit("duration", "Duration of calls", milliseconds, duration.family.clone());
        let sizes = [("request_size", "Size of decompressed requests"), ("response_size", "Size of answers")];
        let sizes = sizes.map(|(name, help)| {
            let sizes = Histograms::new();
            registry.register_with_unit(name, help, Unit::Bytes, sizes.family.clone());
            sizes
        });
        let counts =
            [("requests_per_rpc", "Requests of each call"), ("responses_per_rpc", "Answers of each call")];
        let counts = counts.map(|(name, help)| {
            let counts = Histograms::new();
            registry.register(name, help, counts.family.clone());
            counts
        });
        Self { duration, sizes, counts }
    }

    /// Awaits an outgoing call and counts it, also if the future is dropped. `framed` is the
    /// request.
    pub async fn client(
        &self,
        framed: &Chunks,
        deadline: Instant,
        call: impl Future<Output = Result<Reply, CallError>>,
    ) -> Result<Reply, CallError> {
        let (request, began) = (Some(framed.len().saturating_sub(PREFIX_LEN)), Instant::now());
        // `None` until the call ends; then its status code and the size of its answer.
        let mut ended = guard(None, |ended| {
            let dropped = if Instant::now() < deadline { Code::Cancelled } else { Code::DeadlineExceeded };
            let (code, response) = ended.unwrap_or((dropped, None));
            self.ended(code, request, response, began.elapsed());
        });
        let answer = call.await;
        *ended = Some(match &answer {
            Ok(reply) => (reply.code(), reply.framed.len().checked_sub(PREFIX_LEN)),
            Err(error) => (error.code(), None),
        });
        answer
    }
}

impl Observe for RpcMetrics {
    fn ended(&self, code: Code, request: Option<usize>, response: Option<usize>, took: Duration) {
        self.duration.observe(code, took.as_secs_f64() * 1000.0);
        for ((sizes, counts), size) in self.sizes.iter().zip(&self.counts).zip([request, response]) {
            if let Some(size) = size {
                sizes.observe(code, size as f64);
            }
            counts.observe(code, if size.is_some() { 1.0 } else { 0.0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn names_and_labels_are_those_of_porchs_runner() {
        let mut registry = Registry::default();
        let metrics = RpcMetrics::new(&mut registry, "rpc_server");
        metrics.ended(Code::NotFound, Some(300), None, Duration::from_millis(7));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let labels = "rpc_system=\"grpc\",rpc_service=\"evaluator.FunctionEvaluator\",rpc_method=\"EvaluateFunction\",\
                      rpc_grpc_status_code=\"5\"";
        for line in [
            format!("rpc_server_duration_milliseconds_bucket{{le=\"5.0\",{labels}}} 0"),
            format!("rpc_server_duration_milliseconds_bucket{{le=\"10.0\",{labels}}} 1"),
            format!("rpc_server_duration_milliseconds_sum{{{labels}}} 7.0"),
            format!("rpc_server_request_size_bytes_sum{{{labels}}} 300.0"),
            format!("rpc_server_requests_per_rpc_sum{{{labels}}} 1.0"),
            format!("rpc_server_responses_per_rpc_count{{{labels}}} 1"),
            format!("rpc_server_responses_per_rpc_sum{{{labels}}} 0.0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("rpc_server_response_size_bytes_count{"), "{text}");
    }

    #[tokio::test]
    async fn outgoing_calls_are_counted_however_they_end() {
        use futures_util::FutureExt;

        let mut registry = Registry::default();
        let metrics = RpcMetrics::new(&mut registry, "rpc_client");
        let framed = porch_fn_proto::frame(bytes::Bytes::from_static(b"request").into());
        let later = Instant::now() + Duration::from_mins(1);
        let unsent = metrics.client(&framed, later, async { Err(CallError::NotSent) }).await;
        assert!(matches!(unsent, Err(CallError::NotSent)));
        let refused = async { Ok(Reply::failed(Code::NotFound, "no")) };
        metrics.client(&framed, later, refused).await.unwrap();
        for deadline in [Instant::now(), later] {
            assert!(metrics.client(&framed, deadline, std::future::pending()).now_or_never().is_none());
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for code in [Code::Unavailable, Code::NotFound, Code::DeadlineExceeded, Code::Cancelled] {
            let labels = format!("rpc_grpc_status_code=\"{}\"}}", i32::from(code));
            let counted = |name: &str, value: &str| {
                text.lines()
                    .any(|line| line.starts_with(name) && line.ends_with(&format!("{labels} {value}")))
            };
            assert!(counted("rpc_client_duration_milliseconds_count", "1"), "{code:?}: {text}");
            assert!(counted("rpc_client_request_size_bytes_sum", "7.0"), "{code:?}: {text}");
        }
    }
}
