//! The router's metrics. Labels are bounded: codes, outcomes and health states, never callers.
//! Images are labels only with `--metrics-per-function`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use porch_fn_admin::function_metrics::FunctionMetrics;
use porch_fn_admin::metrics::{ByCode, add, gauge, histogram, in_seconds};
use porch_fn_admin::rpc_metrics::RpcMetrics;
use porch_fn_grpc::{Inflight, code_name};
use porch_fn_ring::fingerprint;
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use strum::{IntoStaticStr, VariantArray};
use tonic::Code;

use crate::health::HealthState;
use crate::view::View;

/// How one attempt at one runner ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Outcome {
    Answered,
    Shed,
    NotSent,
    Broken,
}

/// Why a call is sent to another runner than its image's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Spill {
    /// The image has more calls than its owner may take.
    Load,
    /// The owner is not in a health state that the router picks from.
    Unhealthy,
    /// The owner was tried and did not answer.
    Failed,
}

/// One label and its value.
type Label<V = &'static str> = [(&'static str, V); 1];

/// Counters of the forwarding path and gauges of membership.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Family<Label, Counter>,
    calls_by_code: ByCode<Counter>,
    seconds: Histogram,
    functions: Option<FunctionMetrics>,
    attempts: Family<Label<Outcome>, Counter>,
    off_owner: Counter,
    spills: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    hints: Family<Label, Counter>,
    /// Seconds that calls waited for a runner.
    pub(crate) waited: Histogram,
    ring_members: Gauge,
    ring_hash: Gauge,
    /// 1 once discovery has answered.
    pub(crate) ready: Gauge,
    runners: Family<Label, Gauge>,
    shards: Family<Label, Gauge>,
    pub(crate) ring_changes: Counter<u64, AtomicU64>,
    /// Attempts at runners.
    pub(crate) client: RpcMetrics,
}

impl Metrics {
    /// Registers all metrics in `registry`, with those of `inflight`. `per_function` images get
    /// metrics of their own.
    pub(crate) fn new(registry: &mut Registry, inflight: &Arc<Inflight>, per_function: usize) -> Self {
        let client = RpcMetrics::new(registry, "rpc_client");
        let registry = registry.sub_registry_with_prefix("porch_fn_router");
        registry.register_collector(Box::new(Arc::clone(inflight)));
        let metrics = Self {
            calls: add(registry, "calls", "Calls answered, by gRPC code"),
            calls_by_code: ByCode::default(),
            seconds: in_seconds(registry, "call", "Time from request to answer", histogram()),
            functions: FunctionMetrics::calls(registry, per_function),
            attempts: add(registry, "attempts", "Attempts at runners, by outcome"),
            off_owner: add(registry, "off_owner", "Calls answered by another runner than the image's owner"),
            spills: add(
                registry,
                "spills",
                "Calls answered by another runner than the image's owner, by reason: load (the image is busy), unhealthy (the \
                 owner may not be picked), failed (the owner was tried and did not answer)",
            ),
            retries: add(
                registry,
                "retries",
                "Calls sent to another runner, by the outcome of the attempt before",
            ),
            hints: add(
                registry,
                "hints",
                "Hints to owners about images that will probably be called (--predict), by outcome",
            ),
            waited: in_seconds(
                registry,
                "runner_wait",
                "Time that calls waited for a runner because none was available",
                histogram(),
            ),
            ring_members: add(registry, "ring_members", "Runners on the ring, healthy or not"),
            ring_hash: add(
                registry,
                "ring_hash",
                "Hash of the runners on the ring; must be the same on all routers",
            ),
            ready: add(
                registry,
                "ready",
                "1 once discovery has answered; before that, the router is not ready",
            ),
            runners: add(registry, "runners", "Runners, by health state"),
            shards: add(
                registry,
                "shards",
                "Deprecated: use porch_fn_router_runners. The same with the states' old names: well (healthy), held down \
                 (cooling_down), passed over (ejected)",
            ),
            ring_changes: add(registry, "ring_changes", "Rebuilds of the ring"),
            client,
        };
        // The counters exist with value 0 from the start, so that Prometheus sees the first
        // increment.
        for spill in Spill::VARIANTS {
            drop(metrics.spills.get_or_create(&[("reason", spill.into_str())]));
        }
        for outcome in [Outcome::Shed, Outcome::NotSent, Outcome::Broken] {
            drop(metrics.retries.get_or_create(&[("reason", outcome.into_str())]));
        }
        metrics
    }

    /// Counts a call. `image` is empty if it is not known.
    pub(crate) fn record_call(&self, image: &str, code: Code, took: Duration) {
        let calls = self
            .calls_by_code
            .get_or_create(code, || self.calls.get_or_create_owned(&[("code", code_name(code))]));
        calls.inc();
        self.seconds.observe(took.as_secs_f64());
        if let Some(functions) = &self.functions {
            functions.record_call(image, code, took);
        }
    }

    pub(crate) fn record_attempt(&self, outcome: Outcome) {
        self.attempts.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a call that was answered by a runner other than the image's owner.
    pub(crate) fn record_spill(&self, why: Spill) {
        self.off_owner.inc();
        self.spills.get_or_create(&[("reason", why.into_str())]).inc();
    }

    /// Counts a hint about an image that will probably be called.
    pub(crate) fn record_hint(&self, outcome: &'static str) {
        self.hints.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a call that is sent again. `before` is the outcome of the previous attempt.
    pub(crate) fn record_retry(&self, before: Outcome) {
        self.retries.get_or_create(&[("reason", before.into_str())]).inc();
    }

    /// Sets the gauges of ring and runners.
    pub(crate) fn update(&self, view: &View) {
        let ring = view.ring.nodes();
        self.ring_members.set(gauge(ring.len()));
        self.ring_hash.set(fingerprint(ring).cast_signed());
        for (state, count) in HealthState::VARIANTS.iter().zip(view.counts()) {
            self.runners.get_or_create(&[("state", state.into_str())]).set(gauge(count));
            self.shards.get_or_create(&[("state", state.as_old_str())]).set(gauge(count));
        }
    }
}
