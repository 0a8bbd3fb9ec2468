//! One pod: the observed object, and the facts that only this runner knows.

use std::time::Duration;

use crate::event::DeleteReason;
use crate::shared::Shared;
use crate::types::{Pod, RequestId, Time};

/// How long after its deletion timestamp a terminating pod counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Tracked {
    pub(crate) pod: Pod,
    /// This runner created the pod, and deletes it if it fails.
    pub(crate) created_here: bool,
    pub(crate) owned_since: Option<Time>,
    pub(crate) health: Health,
    /// The pod was ready once, so its end is not a failed start.
    pub(crate) served: bool,
    /// Calls of this runner in flight, with their deadlines.
    pub(crate) calls: Vec<(RequestId, Time)>,
    /// The pod refused a call. Until this time, this runner sends it at most `full_with` calls at
    /// once.
    pub(crate) full_until: Time,
    pub(crate) full_with: usize,
    pub(crate) liveness: Liveness,
    /// When this runner first saw the pod run.
    pub(crate) running_since: Option<Time>,
    /// Set while a push (a write of `reclaim_after`) is under way. Without an answer by this time,
    /// the push counts as lost.
    pub(crate) push: Option<Time>,
    /// The `reclaim_after` of this runner's last push. If the pod has another value, another runner
    /// wrote it.
    pub(crate) pushed: Option<Time>,
    /// No push before this time.
    pub(crate) push_after: Time,
    /// The API server answered a push with an error or not at all. Until this time, the pod is used
    /// without a push.
    pub(crate) waived_until: Time,
    /// Set while a delete is under way. Without an answer by this time, the delete counts as lost.
    pub(crate) delete: Option<Time>,
    /// No delete before this time.
    pub(crate) delete_after: Time,
    /// A delete was accepted, or a push found the pod gone. The watch has not shown this yet.
    pub(crate) doomed: bool,
    /// The pod is one of the image's `min_pods`. It stays although it is unused.
    pub(crate) kept: bool,
    /// Why this pod's owner wants to delete the pod before `reclaim_after`.
    pub(crate) retiring: Option<DeleteReason>,
    /// If the pod is being evicted: the end of the eviction's notice, and the pod's `reclaim_after`
    /// when the eviction began.
    pub(crate) eviction: (Time, Option<Time>),
    /// Set when this runner gave notice: it wrote a `reclaim_after` that passes soon. This runner
    /// gives no further notice before this time, so that other runners can object.
    pub(crate) noticed: Option<Time>,
    /// No eviction before this time.
    pub(crate) left_alone_until: Time,
    /// When this runner last asked the pod's owner to evict the pod.
    pub(crate) asked_for_place: Option<Time>,
    /// When this runner learned that the pod ends.
    pub(crate) ending_since: Option<Time>,
}

/// Whether a pod that has served still answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Liveness {
    /// When the pod last answered, or got a call while it was idle.
    pub(crate) last_sign: Time,
    /// When the pod last answered a call.
    pub(crate) last_served: Time,
    /// The check under way.
    pub(crate) check: Option<Check>,
    /// Number of checks so far. The check under way has this number.
    pub(crate) checks: u64,
    /// From this time on the pod counts as silent: it runs but does not answer. A silent pod does
    /// not count towards `max_pods`.
    pub(crate) silent_from: Option<Time>,
    /// Set if a long call has reached its deadline since the pod last served a call: the package
    /// of the first such call, and when it reached its deadline.
    pub(crate) late: Option<(u64, Time)>,
}

/// A check under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) started: Time,
    pub(crate) due: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// Not probed.
    #[default]
    Unknown,
    Probing {
        since: Time,
        /// `reclaim_after` when the probe began. If another runner has pushed a later value since
        /// then, that runner can reach the pod.
        reclaim_after: Option<Time>,
        /// The pod was pending longer than the ready timeout, and the waiting calls were rejected.
        given_up: bool,
    },
    Ready,
    /// The pod was not ready in time. It is deleted unless it becomes ready first.
    Overdue,
    /// The pod failed and never recovers.
    Failed,
    /// Several calls in a row on the pod reached their deadlines.
    Hung,
}

// === impl Tracked ===

impl Tracked {
    /// Whether the pod is not terminating, as far as this runner knows.
    pub(crate) fn stays(&self) -> bool {
        self.pod.terminating_since.is_none() && !self.doomed
    }

    /// Whether the pod can serve now or later.
    pub(crate) fn lives(&self) -> bool {
        self.stays() && self.delete.is_none() && !self.failed()
    }

    /// Whether the pod serves, or may soon serve: it is neither ending, failed nor silent.
    pub(crate) fn may_serve(&self, shared: &Shared) -> bool {
        self.lives() && !self.is_silent(shared)
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self.health, Health::Overdue | Health::Failed | Health::Hung)
    }

    pub(crate) fn ready(&self) -> bool {
        self.lives() && self.health == Health::Ready
    }

    /// Whether this runner waits for the pod's first readiness. If the pod ends before, that counts
    /// as a failed start.
    pub(crate) fn awaited(&self) -> bool {
        self.lives() && !self.served && matches!(self.health, Health::Probing { .. })
    }

    /// Whether this runner deletes the pod if it fails.
    pub(crate) fn ours(&self) -> bool {
        self.created_here || self.owned_since.is_some()
    }

    pub(crate) fn evicting(&self) -> bool {
        self.retiring == Some(DeleteReason::Evicted)
    }

    /// Whether `reclaim_after` is less than `margin` away, or unknown.
    pub(crate) fn expires_within(&self, margin: Duration, now: Time) -> bool {
        self.pod.reclaim_after.is_none_or(|reclaim_after| reclaim_after <= now + margin)
    }

    /// Whether the pod is retiring, or expires within `margin`. Calls should then go to other pods
    /// if possible.
    pub(crate) fn is_leaving(&self, margin: Duration, now: Time) -> bool {
        self.retiring.is_some() || self.expires_within(margin, now)
    }

    pub(crate) fn last_deadline(&self) -> Option<Time> {
        self.calls.iter().map(|&(_, deadline)| deadline).max()
    }

    /// Whether the pod's termination is overdue by [`STUCK_AFTER`]. It may never end.
    pub(crate) fn is_stuck(&self, shared: &Shared) -> bool {
        self.pod.terminating_since.is_some_and(|since| shared.reached(since + STUCK_AFTER))
    }
}
