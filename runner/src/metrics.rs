//! The runner's metrics. Labels are bounded: codes, runtimes, phases and reasons of fixed sets.
//! Images are labels only with `--metrics-per-function`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_admin::function_metrics::FunctionMetrics;
use porch_fn_admin::metrics::{add, gauge, histogram, in_seconds};
use porch_fn_admin::rpc_metrics::RpcMetrics;
use porch_fn_grpc::{Inflight, code_name};
use porch_fn_numbers::{Recorded, Recorder};
use porch_fn_pool::FunctionStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use strum::IntoStaticStr;
use tokio::time::Instant;
use tonic::Code;

/// Labels and their values.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Gauges = Family<Labels<1>, Gauge>;
type Histograms<const N: usize> = Family<Labels<N>, Histogram>;

/// Which runtime answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(const_into_str)]
pub(crate) enum Runtime {
    Exec,
    Pod,
    None,
}

/// Metrics of calls, of the pool, and of configuration sources.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Counters<2>,
    seconds: Histograms<1>,
    waiting: Gauges,
    waiting_seconds: Histograms<1>,
    function_waits: Option<FunctionMetrics>,
    /// The waits by shard key, for routers.
    queue_waits: Mutex<Recorder>,
    origin: Instant,
    running: Gauges,
    running_seconds: Histograms<1>,
    rejected: Counters<2>,
    retries: Counters<1>,
    pool_actions: Counters<1>,
    pods: Gauges,
    functions: Gauge,
    pub(crate) pod_start: Histogram,
    pod_start_phases: Histograms<1>,
    pod_start_failures: Counters<1>,
    pub(crate) pods_hung: Counter,
    config_valid: Gauges,
    function_configs: Gauge,
    function_config_problems: Gauge,
    peers: Gauge,
    listed: Gauge,
    ring_hash: Gauge,
    pub(crate) exec_hash: Gauge,
    pub(crate) clock_ahead: Gauge<f64, AtomicU64>,
    lookups: Histograms<2>,
    /// Calls to pods.
    pub(crate) client: RpcMetrics,
}

/// A call that waits or runs, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    calls: Gauge,
    seconds: Histogram,
    began: Instant,
    /// Whether the time is recorded on drop.
    is_timed: bool,
}

// === impl Runtime ===

impl Runtime {
    fn label(self) -> Labels<1> {
        [("runtime", self.into_str())]
    }
}

// === impl Stage ===

impl Stage {
    fn enter(runtime: Runtime, calls: &Gauges, seconds: &Histograms<1>, is_timed: bool) -> Self {
        let calls = calls.get_or_create_owned(&runtime.label());
        calls.inc();
        let seconds = seconds.get_or_create_owned(&runtime.label());
        Self { calls, seconds, began: Instant::now(), is_timed }
    }

    /// Records the waiting time, because the call has got a pod or may run its executable. Returns
    /// that time for [`Metrics::waited`].
    pub(crate) fn granted(mut self) -> Duration {
        self.is_timed = true;
        self.began.elapsed()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.calls.dec();
        if self.is_timed {
            self.seconds.observe(self.began.elapsed().as_secs_f64());
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Registers all metrics in `registry`, including those of `inflight`. `per_function` images get
    /// metrics of their own.
    pub(crate) fn new(registry: &mut Registry, inflight: &Arc<Inflight>, per_function: usize) -> Self {
        let client = RpcMetrics::new(registry, "rpc_client");
        let r = registry.sub_registry_with_prefix("porch_fn_runner");
        r.register_collector(Box::new(Arc::clone(inflight)));
        let metrics = Self {
            calls: add(r, "calls", "Calls answered, by runtime and gRPC code"),
            seconds: seconds(r, "call", "Time from request to answer, by runtime"),
            waiting: add(r, "calls_waiting", "Calls that wait for a pod or a place of the exec runtime"),
            waiting_seconds: seconds(r, "queue_wait", "Time that calls waited for a pod or the exec runtime"),
            function_waits: FunctionMetrics::seconds(
                r,
                per_function,
                "function_queue_wait",
                "Time that calls waited for a pod or the exec runtime, by image; \"other\" is all images beyond \
                 --metrics-per-function",
            ),
            queue_waits: Mutex::default(),
            origin: Instant::now(),
            running: add(r, "calls_running", "Calls that functions are running"),
            running_seconds: seconds(r, "evaluation", "Time that functions took, in a pod or a process"),
            rejected: add(r, "rejected", "Calls that were not run, by reason"),
            retries: add(r, "retries", "Calls retried in another pod, by reason"),
            pool_actions: add(r, "pool_actions", "Actions of the pod pool"),
            pods: add(r, "pods", "Function pods of the images that this runner owns, by state"),
            functions: add(r, "functions", "Functions that have pods or waiting calls"),
            pod_start: in_seconds(r, "pod_start", "Time that pods took to become ready", histogram()),
            pod_start_phases: seconds(
                r,
                "pod_start_phase",
                "Time of each phase: create, address, serve; or create, announce",
            ),
            pod_start_failures: add(r, "pod_start_failures", "Pods that never became ready, by reason"),
            pods_hung: add(r, "pods_hung", "How often a pod with calls became unresponsive"),
            config_valid: add(r, "config_valid", "1 if the runner can use a source of its configuration"),
            function_configs: add(r, "function_configs", "FunctionConfigs in the cluster"),
            function_config_problems: add(r, "function_config_problems", "FunctionConfigs not fully used"),
            peers: add(r, "peers", "Runners on the ring of --peers"),
            listed: add(r, "listed", "1 if this runner is among --peers; if 0, it owns no image"),
            ring_hash: add(r, "ring_hash", "Hash of the ring's members; routers and runners must agree"),
            exec_hash: add(r, "exec_config_hash", "Hash of images and executables; runners must agree"),
            clock_ahead: in_seconds(r, "clock_ahead", "API server's clock minus ours", Gauge::default()),
            lookups: seconds(r, "registry_lookup", "Time that registries took to answer"),
            client,
        };
        metrics.begin_at_zero();
        metrics
    }

    /// Creates series with the value zero, so that Prometheus sees the first event as an increase.
    fn begin_at_zero(&self) {
        for runtime in [Runtime::Exec, Runtime::Pod] {
            drop(self.waits(runtime));
            drop(Stage::enter(runtime, &self.running, &self.running_seconds, false));
        }
        for reason in ["broken", "full", "refused", "vanished"] {
            drop(self.retries.get_or_create(&[("reason", reason)]));
        }
        for what in ["metadata", "digest", "tags"] {
            for result in ["answered", "failed"] {
                drop(self.lookups.get_or_create(&[("what", what), ("result", result)]));
            }
        }
    }

    pub(crate) fn answered(&self, runtime: Runtime, code: Code, took: Duration) {
        self.calls.get_or_create(&[("runtime", runtime.into_str()), ("code", code_name(code))]).inc();
        self.seconds.get_or_create(&runtime.label()).observe(took.as_secs_f64());
    }

    /// A call begins to wait. Its time is recorded only by [`granted`](Stage::granted).
    pub(crate) fn waits(&self, runtime: Runtime) -> Stage {
        Stage::enter(runtime, &self.waiting, &self.waiting_seconds, false)
    }

    /// A call of `image`, a shard key, waited for this time until it got a place.
    pub(crate) fn waited(&self, image: &str, waited: Duration) {
        self.queue_waits.lock().record(image, self.origin.elapsed(), waited, false);
        if let Some(functions) = &self.function_waits {
            functions.observe(image, waited);
        }
    }

    /// The waits of the last minute by shard key. The empty key has those of all other images.
    pub(crate) fn queue_waits(&self) -> BTreeMap<Arc<str>, Recorded> {
        self.queue_waits.lock().recorded(self.origin.elapsed())
    }

    /// A function starts to run a call. The time is recorded however the call ends.
    pub(crate) fn evaluates(&self, runtime: Runtime) -> Stage {
        Stage::enter(runtime, &self.running, &self.running_seconds, true)
    }

    /// A call was rejected: it got no pod, or no place to run its executable.
    pub(crate) fn rejected(&self, runtime: Runtime, reason: &'static str) {
        self.rejected.get_or_create(&[("runtime", runtime.into_str()), ("reason", reason)]).inc();
    }

    /// A call gets another pod. `reason` is why the previous pod did not answer: `broken`,
    /// `refused`, `vanished` or `full`.
    pub(crate) fn tried_again(&self, reason: &'static str) {
        self.retries.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn pool_action(&self, action: &'static str) {
        self.pool_actions.get_or_create(&[("action", action)]).inc();
    }

    /// Records the pods of the pool.
    pub(crate) fn pool(&self, stats: &[FunctionStats]) {
        // Count only owned images, because only the owner probes all pods of an image. So each pod
        // is counted once over all runners.
        let sum = |count: fn(&FunctionStats) -> usize| {
            stats.iter().filter(|function| function.owned).map(count).sum()
        };
        for (state, pods) in [
            ("ready", sum(|function| function.ready)),
            ("starting", sum(|function| function.starting)),
            ("silent", sum(|function| function.silent)),
            ("terminating", sum(|function| function.terminating)),
        ] {
            self.pods.get_or_create(&[("state", state)]).set(gauge(pods));
        }
        self.functions.set(gauge(stats.len()));
    }

    /// A pod that this runner creates has passed a phase of its start: `create`, `address` or
    /// `serve`.
    pub(crate) fn pod_start_phase(&self, phase: &'static str, took: Duration) {
        self.pod_start_phases.get_or_create(&[("phase", phase)]).observe(took.as_secs_f64());
    }

    /// A pod that this runner created will never serve.
    pub(crate) fn pod_start_failed(&self, reason: &'static str) {
        self.pod_start_failures.get_or_create(&[("reason", reason)]).inc();
    }

    /// Records whether a configuration source is valid. `source` is the name of its flag or object.
    pub(crate) fn config_valid(&self, source: &'static str, valid: bool) {
        self.config_valid.get_or_create(&[("source", source)]).set(i64::from(valid));
    }

    pub(crate) fn function_configs(&self, objects: usize, problems: usize) {
        self.function_configs.set(gauge(objects));
        self.function_config_problems.set(gauge(problems));
    }

    pub(crate) fn ring(&self, peers: usize, listed: bool, hash: u64) {
        self.peers.set(gauge(peers));
        self.listed.set(i64::from(listed));
        self.ring_hash.set(hash.cast_signed());
    }

    /// Records a registry lookup of `what`, and whether the registry answered.
    pub(crate) fn lookup(&self, what: &'static str, answered: bool, took: Duration) {
        let result = if answered { "answered" } else { "failed" };
        self.lookups.get_or_create(&[("what", what), ("result", result)]).observe(took.as_secs_f64());
    }
}

fn seconds<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Histograms<N> {
    in_seconds(registry, name, help, Family::new_with_constructor(histogram as fn() -> _))
}

#[cfg(test)]
pub(crate) mod tests {
    use porch_fn_grpc::Hop;
    use porch_fn_pool::ImageKey;
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// Metrics, and a function that returns the text for Prometheus.
    pub(crate) fn metrics() -> (Arc<Metrics>, impl Fn() -> String) {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, &Inflight::new(0, Hop::Runner), 0));
        let text = move || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        (metrics, text)
    }

    #[test]
    fn only_the_owner_of_an_image_counts_its_pods() {
        let stats = |image: &str, owned, ready, starting| FunctionStats {
            image: ImageKey::from(image),
            owned,
            ready,
            starting,
            silent: 0,
            terminating: 0,
            in_flight: 0,
            waiting: 0,
        };
        let (metrics, text) = metrics();
        metrics.pool(&[stats("a", true, 2, 1), stats("b", false, 0, 3), stats("c", true, 1, 0)]);
        for line in ["pods{state=\"ready\"} 3", "pods{state=\"starting\"} 1", "functions 3"] {
            assert!(text().contains(&format!("porch_fn_runner_{line}\n")), "{line}");
        }
    }
}
