//! The runner's metrics. Labels are bounded: codes, runtimes, phases and reasons of fixed sets, never images.

mod pods;
mod stages;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use porch_fn_admin::rpc_metrics::{RpcMetrics, Side};
use porch_fn_grpc::{Inflight, code_name};
use porch_fn_pool::FunctionStats;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use self::pods::PodMetrics;
use self::stages::{Evaluates, Stages, Waits};
use crate::exec::ExecHash;
use crate::pods::Step;

/// From a cached call to the default deadline: warm calls take milliseconds, cold ones seconds.
const SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// What registries are asked for.
const LOOKUPS: [&str; 3] = ["metadata", "digest", "tags"];

/// A family of histograms over seconds.
type Seconds<L> = Family<L, Histogram>;

/// Which runtime answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Runtime {
    Exec,
    Pod,
    None,
}

impl Runtime {
    /// For spans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Pod => "pod",
            Self::None => "none",
        }
    }
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    what: &'static str,
    result: &'static str,
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
    ring_hash: Gauge,
    exec_config: Gauge,
    clock_ahead: Gauge<f64, AtomicU64>,
    lookups: Seconds<LookupLabels>,
    stages: Stages,
    pods: PodMetrics,
    /// Calls to pods.
    pub(crate) client: RpcMetrics,
}

impl Metrics {
    /// Registers everything in `registry`, and what `inflight` holds.
    pub fn new(registry: &mut Registry, inflight: &Arc<Inflight>) -> Self {
        let client = RpcMetrics::new(registry, Side::Client);
        let registry = registry.sub_registry_with_prefix("porch_fn_runner");
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            pool_actions: Family::default(),
            config_valid: Family::default(),
            function_configs: Gauge::default(),
            function_config_problems: Gauge::default(),
            peers: Gauge::default(),
            listed: Gauge::default(),
            ring_hash: Gauge::default(),
            exec_config: Gauge::default(),
            clock_ahead: Gauge::default(),
            lookups: Seconds::new_with_constructor(|| Histogram::new(SECONDS)),
            stages: Stages::new(registry),
            pods: PodMetrics::new(registry),
            client,
        };
        for what in LOOKUPS {
            for result in ["answered", "failed"] {
                // There from the start, so that a first one is seen as a change.
                drop(metrics.lookups.get_or_create(&LookupLabels { what, result }));
            }
        }
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
        registry.register(
            "ring_hash",
            "A hash over the runners on the ring, 0 without --peers: must be that of the routers and of all runners",
            metrics.ring_hash.clone(),
        );
        registry.register_with_unit(
            "clock_ahead",
            "How far the API server's clock is ahead of this machine's; negative where it is behind",
            Unit::Seconds,
            metrics.clock_ahead.clone(),
        );
        registry.register_with_unit(
            "registry_lookup",
            "Time that registries took for what was not known already: metadata, digest or tags",
            Unit::Seconds,
            metrics.lookups.clone(),
        );
        registry.register(
            "exec_config_hash",
            "A hash over which image the exec runtime runs by which executable, 0 when it is off: must be the same on \
             all runners",
            metrics.exec_config.clone(),
        );
        metrics
    }

    pub(crate) fn ring(&self, peers: usize, listed: bool, hash: u64) {
        self.peers.set(gauge(peers));
        self.listed.set(i64::from(listed));
        self.ring_hash.set(hash.cast_signed());
    }

    /// A call begins to wait.
    pub(crate) fn waits(&self, runtime: Runtime) -> Waits {
        self.stages.waits(runtime)
    }

    /// A call is handed to its function.
    pub(crate) fn evaluates(&self, runtime: Runtime) -> Evaluates {
        self.stages.evaluates(runtime)
    }

    /// A call got no pod or no turn.
    pub(crate) fn rejected(&self, runtime: Runtime, reason: &'static str) {
        self.stages.rejected(runtime, reason);
    }

    /// A call has another pod: `broken`, `refused`, `vanished` or `full` is the one before.
    pub(crate) fn tried_again(&self, reason: &'static str) {
        self.stages.tried_again(reason);
    }

    /// A start of a pod is one step on.
    pub(crate) fn pod_start(&self, step: Step) {
        self.pods.started(step);
    }

    /// A pod stopped answering.
    pub(crate) fn pod_hung(&self) {
        self.pods.hung.inc();
    }

    /// What the pool holds.
    pub(crate) fn pool(&self, stats: &[FunctionStats]) {
        self.pods.pool(stats);
    }

    /// A registry was asked for `what` and gave an answer or none.
    pub(crate) fn lookup(&self, what: &'static str, answered: bool, took: Duration) {
        let result = if answered { "answered" } else { "failed" };
        self.lookups.get_or_create(&LookupLabels { what, result }).observe(took.as_secs_f64());
    }

    /// How far the API server's clock is ahead of this machine's.
    pub(crate) fn clock_ahead(&self, seconds: f64) {
        self.clock_ahead.set(seconds);
    }

    /// What the exec runtime runs.
    pub(crate) fn exec_config(&self, hash: ExecHash) {
        self.exec_config.set(hash.number());
    }

    /// Whether a source of configuration, called after its flag or object, can be used as it is.
    pub(crate) fn config_valid(&self, source: &'static str, valid: bool) {
        self.config_valid.get_or_create(&SourceLabel { source }).set(i64::from(valid));
    }

    pub(crate) fn function_configs(&self, objects: usize, problems: usize) {
        self.function_configs.set(gauge(objects));
        self.function_config_problems.set(gauge(problems));
    }

    pub(crate) fn answered(&self, runtime: Runtime, code: Code, took: Duration) {
        self.calls.get_or_create(&CallLabels { runtime, code: code_name(code) }).inc();
        self.seconds.get_or_create(&RuntimeLabel { runtime }).observe(took.as_secs_f64());
    }

    pub(crate) fn pool_action(&self, action: &'static str) {
        self.pool_actions.get_or_create(&ActionLabel { action }).inc();
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
