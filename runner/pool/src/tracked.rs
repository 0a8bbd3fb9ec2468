//! One pod as this runner tracks it: the object as observed, and what this runner knows beyond it.

use std::time::Duration;

use crate::event::DeleteReason;
use crate::shared::PoolStep;
use crate::types::{Pod, RequestId, ResourceVersion, Time, Uid};

#[derive(Debug, Default)]
pub(crate) struct Tracked {
    pub(crate) pod: Pod,
    /// This runner created it, and cleans up if it fails.
    pub(crate) created_here: bool,
    pub(crate) owned_since: Option<Time>,
    pub(crate) health: Health,
    /// It was ready once: its end is not a failed start.
    pub(crate) served: bool,
    /// Calls of this runner in flight, with their deadlines.
    pub(crate) calls: Vec<(RequestId, Time)>,
    /// It refused a call.
    pub(crate) full: Option<Full>,
    pub(crate) liveness: Liveness,
    /// When it was first seen to run.
    pub(crate) running_since: Option<Time>,
    pub(crate) push: Option<Push>,
    /// The `reclaim_after` of this runner's last push. Another value was written by somebody else.
    pub(crate) pushed: Option<Time>,
    /// No push before this.
    pub(crate) push_after: Time,
    /// The API server did not answer a push: until then the pod is used without one.
    pub(crate) waived_until: Time,
    /// A delete is under way. Without an answer by then, it counts as lost.
    pub(crate) delete: Option<Time>,
    /// No delete before this.
    pub(crate) delete_after: Time,
    /// A delete was accepted, or a push found it gone; the watch has not shown it yet.
    pub(crate) doomed: bool,
    /// One of the image's minimum: it stays although nobody uses it.
    pub(crate) kept: bool,
    /// Its owner wants to delete it before its `reclaim_after`.
    pub(crate) retiring: Option<DeleteReason>,
    /// If it is being evicted: when the notice ends, and its `reclaim_after` before.
    pub(crate) eviction: (Time, Option<Time>),
    /// No further notice before this, since another runner may have objected to the last one.
    pub(crate) noticed: Option<Time>,
    /// It is not evicted before this.
    pub(crate) left_alone_until: Time,
    /// When this runner last asked its owner to evict it.
    pub(crate) asked_for_place: Option<Time>,
    /// Since when it is known to end.
    pub(crate) ending_since: Option<Time>,
}

/// Whether a pod that has served still answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Liveness {
    /// When it last answered, or got a call while it was idle.
    pub(crate) last_sign: Time,
    /// When it last answered a call.
    pub(crate) last_served: Time,
    /// The check under way.
    pub(crate) check: Option<Check>,
    /// How many checks there were.
    pub(crate) checks: u64,
    /// From when on it is silent: it does not count towards the limit.
    pub(crate) silent_from: Option<Time>,
    /// The first of the calls in a row that ended by their deadlines: its package, and when.
    pub(crate) late: Option<(u64, Time)>,
}

/// A check under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) number: u64,
    pub(crate) at: Time,
    pub(crate) by: Time,
}

/// A pod that takes no more calls for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// How many it has taken from this runner.
    pub(crate) room: usize,
    pub(crate) until: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// Not probed.
    #[default]
    Unknown,
    Probing {
        since: Time,
        /// `reclaim_after` at that time: if it has moved since, another runner reaches the pod.
        reclaim_after: Option<Time>,
        /// It was pending past the ready timeout, and its waiters were rejected.
        given_up: bool,
    },
    Ready,
    /// Not ready in time: to be deleted, unless it turns ready first.
    Overdue,
    /// Its object is failed: it never recovers.
    Failed,
    /// Its calls end only by their deadlines.
    Hung,
}

/// A push under way.
#[derive(Debug)]
pub(crate) struct Push {
    /// Without an answer by then, it counts as lost.
    pub(crate) expires_at: Time,
    pub(crate) resource_version: ResourceVersion,
}

// === impl Tracked ===

impl Tracked {
    pub(crate) fn uid(&self) -> &Uid {
        &self.pod.uid
    }

    /// Not terminating, as far as known.
    pub(crate) fn stays(&self) -> bool {
        self.pod.terminating_since.is_none() && !self.doomed
    }

    /// Can serve now or later.
    pub(crate) fn lives(&self) -> bool {
        self.stays() && self.delete.is_none() && !self.failed()
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self.health, Health::Overdue | Health::Failed | Health::Hung)
    }

    pub(crate) fn ready(&self) -> bool {
        self.lives() && self.health == Health::Ready
    }

    /// On its way to ready, and wanted here: its end would be a failed start.
    pub(crate) fn awaited(&self) -> bool {
        self.lives() && !self.served && matches!(self.health, Health::Probing { .. })
    }

    pub(crate) fn load(&self) -> usize {
        self.calls.len()
    }

    /// This runner cleans up when the pod fails.
    pub(crate) fn ours(&self) -> bool {
        self.created_here || self.owned_since.is_some()
    }

    pub(crate) fn evicting(&self) -> bool {
        self.retiring == Some(DeleteReason::Evicted)
    }

    /// Whether `reclaim_after` is less than `margin` away, or unknown.
    pub(crate) fn lapses_within(&self, margin: Duration, now: Time) -> bool {
        self.pod.reclaim_after.is_none_or(|reclaim_after| reclaim_after <= now + margin)
    }

    /// Whether it retires or lapses so soon that calls go to others if there is a choice.
    pub(crate) fn is_leaving(&self, margin: Duration, now: Time) -> bool {
        self.retiring.is_some() || self.lapses_within(margin, now)
    }

    pub(crate) fn last_deadline(&self) -> Option<Time> {
        self.calls.iter().map(|&(_, deadline)| deadline).max()
    }

    /// Its termination is long overdue, and nobody knows when it ends.
    pub(crate) fn is_stuck(&self, step: &PoolStep<'_>) -> bool {
        let stuck_after = step.shared.config.stuck_after;
        self.pod.terminating_since.is_some_and(|since| step.reached(since + stuck_after))
    }
}
