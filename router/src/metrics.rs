//! The router's metrics. Labels are bounded: codes, outcomes and health states, never images or callers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use porch_fn_admin::rpc_metrics::{RpcMetrics, Side};
use porch_fn_grpc::{Inflight, code_name};
use porch_fn_ring::fingerprint;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use crate::health::HealthState;
use crate::view::View;

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

/// Why a call was answered by another runner than its image's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spill {
    /// The image has more calls than its owner's part.
    Load,
    /// The owner may not be picked.
    Unhealthy,
    /// The owner was asked first.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

/// One label and its value.
type Label = [(&'static str, &'static str); 1];

/// Counters of the forwarding path and gauges of membership.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Family<Label, Counter>,
    seconds: Histogram,
    attempts: Family<OutcomeLabel, Counter>,
    /// Calls answered by another runner than the image's owner.
    off_owner: Counter,
    spills: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    waited: Histogram,
    shards: Family<Label, Gauge>,
    ring_members: Gauge,
    ring_hash: Gauge,
    ready: Gauge,
    ring_changes: Counter<u64, AtomicU64>,
    /// Attempts at runners.
    pub(crate) client: RpcMetrics,
}

impl Spill {
    const ALL: [Self; 3] = [Self::Load, Self::Unhealthy, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Unhealthy => "unwell",
            Self::Failed => "failed",
        }
    }
}

impl Outcome {
    /// As the reason of another attempt, and for spans.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Shed => "shed",
            Self::NotSent => "not_sent",
            Self::Broken => "broken",
        }
    }
}

impl Metrics {
    /// Registers everything in `registry`, and what `inflight` holds.
    pub(crate) fn new(registry: &mut Registry, inflight: &Arc<Inflight>) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Histogram::new(SECONDS),
            attempts: Family::default(),
            off_owner: Counter::default(),
            spills: Family::default(),
            retries: Family::default(),
            waited: Histogram::new(SECONDS),
            shards: Family::default(),
            ring_members: Gauge::default(),
            ring_hash: Gauge::default(),
            ready: Gauge::default(),
            ring_changes: Counter::default(),
            client: RpcMetrics::new(registry, Side::Client),
        };
        // Those that have not happened yet are there too, so that a first one is seen as a change.
        for spill in Spill::ALL {
            drop(metrics.spills.get_or_create(&[("reason", spill.as_str())]));
        }
        for outcome in [Outcome::Shed, Outcome::NotSent, Outcome::Broken] {
            drop(metrics.retries.get_or_create(&[("reason", outcome.as_str())]));
        }
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
        registry.register(
            "spills",
            "The same by why: load (the image is busy), unwell (the owner is not in use), failed (it was asked first)",
            metrics.spills.clone(),
        );
        registry.register(
            "retries",
            "Calls sent to another runner, by what became of the attempt before",
            metrics.retries.clone(),
        );
        registry.register_with_unit(
            "runner_wait",
            "Time that calls waited for a runner when there was none to send them to",
            Unit::Seconds,
            metrics.waited.clone(),
        );
        registry.register(
            "ring_members",
            "Runners on the ring, healthy or not",
            metrics.ring_members.clone(),
        );
        registry.register(
            "ring_hash",
            "A hash over the runners on the ring: must be the same on all routers",
            metrics.ring_hash.clone(),
        );
        registry.register(
            "ready",
            "1 once discovery has given a first answer: until then the router takes no calls",
            metrics.ready.clone(),
        );
        registry.register("shards", "Runners, by state", metrics.shards.clone());
        registry.register("ring_changes", "Rebuilds of the ring", metrics.ring_changes.clone());
        metrics
    }

    pub(crate) fn answered(&self, code: Code, took: Duration) {
        self.calls.get_or_create(&[("code", code_name(code))]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn attempt(&self, outcome: Outcome) {
        self.attempts.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Another runner than the image's owner answered.
    pub(crate) fn spilled(&self, why: Spill) {
        self.off_owner.inc();
        self.spills.get_or_create(&[("reason", why.as_str())]).inc();
    }

    /// A call is sent once more after an attempt that ended so.
    pub(crate) fn retried(&self, before: Outcome) {
        self.retries.get_or_create(&[("reason", before.as_str())]).inc();
    }

    /// A call has waited for a runner.
    pub(crate) fn waited(&self, took: Duration) {
        self.waited.observe(took.as_secs_f64());
    }

    /// Discovery has answered.
    pub(crate) fn ready(&self) {
        self.ready.set(1);
    }

    pub(crate) fn ring_changed(&self) {
        self.ring_changes.inc();
    }

    pub(crate) fn show(&self, view: &View) {
        let ring = view.ring().nodes();
        self.ring_members.set(i64::try_from(ring.len()).unwrap_or(i64::MAX));
        self.ring_hash.set(fingerprint(ring).cast_signed());
        for (state, count) in HealthState::ALL.into_iter().zip(view.counts()) {
            self.shards
                .get_or_create(&[("state", state.as_str())])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
