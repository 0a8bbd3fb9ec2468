//! The router's metrics. Labels are bounded: codes, outcomes and standings, never images or callers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use porch_fn_service::grpc::{Inflight, code_name};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use crate::view::View;
use crate::wellness::Standing;

/// From a cached call to the default deadline: warm calls take milliseconds, cold ones seconds.
const SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// How one attempt at one runner ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Answered,
    Shed,
    NotSent,
    Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Counters of the forwarding path and gauges of membership.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Family<CodeLabel, Counter>,
    seconds: Histogram,
    attempts: Family<OutcomeLabel, Counter>,
    /// Calls answered by another runner than the image's owner.
    pub(crate) off_owner: Counter,
    shards: Family<StateLabel, Gauge>,
    ring_changes: Counter<u64, AtomicU64>,
}

impl Metrics {
    /// Registers everything in `registry`, and what `inflight` holds.
    pub(crate) fn new(registry: &mut Registry, inflight: &Arc<Inflight>) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Histogram::new(SECONDS),
            attempts: Family::default(),
            off_owner: Counter::default(),
            shards: Family::default(),
            ring_changes: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("porch_fn_router");
        inflight.register(registry);
        registry.register("calls", "Calls answered, by gRPC code", metrics.calls.clone());
        registry.register_with_unit(
            "call",
            "Time from request to answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register("attempts", "Attempts at runners, by outcome", metrics.attempts.clone());
        registry.register(
            "off_owner",
            "Calls answered by another runner than the image's owner",
            metrics.off_owner.clone(),
        );
        registry.register("shards", "Runners, by state", metrics.shards.clone());
        registry.register("ring_changes", "Rebuilds of the ring", metrics.ring_changes.clone());
        metrics
    }

    pub(crate) fn answered(&self, code: Code, took: Duration) {
        self.calls.get_or_create(&CodeLabel { code: code_name(code) }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn attempt(&self, outcome: Outcome) {
        self.attempts.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(crate) fn ring_changed(&self) {
        self.ring_changes.inc();
    }

    pub(crate) fn show(&self, view: &View) {
        for standing in Standing::ALL {
            let count = view.shards().iter().filter(|shard| shard.standing() == standing).count();
            let state = StateLabel { state: standing.as_str() };
            self.shards.get_or_create(&state).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
