//! Where the time of calls goes: the queue, and the function itself.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use super::{ReasonLabel, Runtime, RuntimeLabel, SECONDS, Seconds};

/// Why a call that had a pod is given another one.
const RETRIES: [&str; 4] = ["broken", "full", "refused", "vanished"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rejected {
    runtime: Runtime,
    reason: &'static str,
}

/// One stage: the calls in it, and how long they are.
#[derive(Debug)]
struct Stage {
    calls: Family<RuntimeLabel, Gauge>,
    seconds: Seconds<RuntimeLabel>,
}

#[derive(Debug)]
pub(super) struct Stages {
    queue: Stage,
    evaluation: Stage,
    rejected: Family<Rejected, Counter>,
    retries: Family<ReasonLabel, Counter>,
}

/// A call in a stage, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct InStage {
    calls: Gauge,
    seconds: Histogram,
    began: Instant,
}

/// A call in the queue.
#[derive(Debug)]
pub(crate) struct Waits(InStage);

/// A call that a function works on. However it ends, its time counts.
#[derive(Debug)]
pub(crate) struct Evaluates(InStage);

// === impl Stage ===

impl Stage {
    fn new() -> Self {
        let seconds = Seconds::new_with_constructor(|| Histogram::new(SECONDS));
        let stage = Self { calls: Family::default(), seconds };
        for runtime in [Runtime::Exec, Runtime::Pod] {
            drop(stage.calls.get_or_create(&RuntimeLabel { runtime }));
            drop(stage.seconds.get_or_create(&RuntimeLabel { runtime }));
        }
        stage
    }

    fn enter(&self, runtime: Runtime) -> InStage {
        let label = RuntimeLabel { runtime };
        let calls = self.calls.get_or_create_owned(&label);
        calls.inc();
        InStage { calls, seconds: self.seconds.get_or_create_owned(&label), began: Instant::now() }
    }
}

// === impl InStage ===

impl InStage {
    fn took(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for InStage {
    fn drop(&mut self) {
        self.calls.dec();
    }
}

// === impl Waits ===

impl Waits {
    /// It has its pod or its turn.
    pub(crate) fn granted(self) {
        self.0.seconds.observe(self.0.took().as_secs_f64());
    }
}

// === impl Evaluates ===

impl Drop for Evaluates {
    fn drop(&mut self) {
        self.0.seconds.observe(self.0.took().as_secs_f64());
    }
}

// === impl Stages ===

impl Stages {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let stages = Self {
            queue: Stage::new(),
            evaluation: Stage::new(),
            rejected: Family::default(),
            retries: Family::default(),
        };
        for reason in RETRIES {
            drop(stages.retries.get_or_create(&ReasonLabel { reason }));
        }
        let help = "Calls that wait for a pod, or for their turn at the exec runtime";
        registry.register("calls_waiting", help, stages.queue.calls.clone());
        let help = "Calls that functions work on";
        registry.register("calls_running", help, stages.evaluation.calls.clone());
        let help =
            "Time that calls waited for a pod, or for their turn at the exec runtime, before they had it";
        registry.register_with_unit("queue_wait", help, Unit::Seconds, stages.queue.seconds.clone());
        let help = "Time in the function: in its pod's answer, or in its process";
        registry.register_with_unit("evaluation", help, Unit::Seconds, stages.evaluation.seconds.clone());
        let help = "Calls that got no pod and no turn, by why";
        registry.register("rejected", help, stages.rejected.clone());
        let help = "Calls given another pod: the one before broke, took no calls, or was gone";
        registry.register("retries", help, stages.retries.clone());
        stages
    }

    pub(super) fn waits(&self, runtime: Runtime) -> Waits {
        Waits(self.queue.enter(runtime))
    }

    pub(super) fn evaluates(&self, runtime: Runtime) -> Evaluates {
        Evaluates(self.evaluation.enter(runtime))
    }

    pub(super) fn rejected(&self, runtime: Runtime, reason: &'static str) {
        self.rejected.get_or_create(&Rejected { runtime, reason }).inc();
    }

    pub(super) fn tried_again(&self, reason: &'static str) {
        self.retries.get_or_create(&ReasonLabel { reason }).inc();
    }
}
