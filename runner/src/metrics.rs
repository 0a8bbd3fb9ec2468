//! The runner's metrics. Labels are bounded: codes and runtimes, never images.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_service::grpc::{Inflight, code_name};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

/// From a cached call to the default deadline: warm calls take milliseconds, cold ones seconds.
const SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// Which runtime answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Runtime {
    Exec,
    Pod,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    runtime: Runtime,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeLabel {
    runtime: Runtime,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabel {
    action: &'static str,
}

/// Counters of calls and of what the pool did.
#[derive(Debug)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<RuntimeLabel, Histogram>,
    pool_actions: Family<ActionLabel, Counter>,
    config_valid: Family<SourceLabel, Gauge>,
    function_configs: Gauge,
    function_config_problems: Gauge,
    peers: Gauge,
    listed: Gauge,
}

impl Metrics {
    /// Registers everything in `registry`, and what `inflight` holds.
    pub fn new(registry: &mut Registry, inflight: &Arc<Inflight>) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            pool_actions: Family::default(),
            config_valid: Family::default(),
            function_configs: Gauge::default(),
            function_config_problems: Gauge::default(),
            peers: Gauge::default(),
            listed: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("porch_fn_runner");
        inflight.register(registry);
        registry.register("calls", "Calls answered, by runtime and gRPC code", metrics.calls.clone());
        registry.register_with_unit(
            "call",
            "Time from request to answer, by runtime",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register("pool_actions", "What the pod pool did", metrics.pool_actions.clone());
        registry.register(
            "config_valid",
            "1 while the source of configuration can be used as it is, 0 while the last good one is kept instead",
            metrics.config_valid.clone(),
        );
        registry.register("function_configs", "FunctionConfigs there are", metrics.function_configs.clone());
        registry.register(
            "function_config_problems",
            "FunctionConfigs whose status says that they do not count, or not as a whole",
            metrics.function_config_problems.clone(),
        );
        registry.register("peers", "Runners on the ring, as --peers shows them", metrics.peers.clone());
        registry.register(
            "listed",
            "1 when this runner is among its --peers and so owns images; one that is not serves all and owns none",
            metrics.listed.clone(),
        );
        metrics
    }

    pub(crate) fn ring(&self, peers: usize, listed: bool) {
        self.peers.set(i64::try_from(peers).unwrap_or(i64::MAX));
        self.listed.set(i64::from(listed));
    }

    /// Whether a source of configuration, called after its flag or object, can be used as it is.
    pub(crate) fn config_valid(&self, source: &'static str, valid: bool) {
        self.config_valid.get_or_create(&SourceLabel { source }).set(i64::from(valid));
    }

    pub(crate) fn function_configs(&self, objects: usize, problems: usize) {
        self.function_configs.set(i64::try_from(objects).unwrap_or(i64::MAX));
        self.function_config_problems.set(i64::try_from(problems).unwrap_or(i64::MAX));
    }

    pub(crate) fn answered(&self, runtime: Runtime, code: Code, took: Duration) {
        self.calls.get_or_create(&CallLabels { runtime, code: code_name(code) }).inc();
        self.seconds.get_or_create(&RuntimeLabel { runtime }).observe(took.as_secs_f64());
    }

    pub(crate) fn pool_action(&self, action: &'static str) {
        self.pool_actions.get_or_create(&ActionLabel { action }).inc();
    }
}
