//! One pod as this runner tracks it: what was observed, and what this runner knows and does besides.

use std::time::Duration;

use crate::capacity::Eviction;
use crate::event::Why;
use crate::types::{Pod, RequestId, ResourceVersion, Time, Uid};

#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) pod: Pod,
    /// By when the watch must have shown a pod that is known from a create's answer alone; `None` once it has.
    pub(crate) confirm_by: Option<Time>,
    /// Its failure is ours to clean up.
    pub(crate) created_here: bool,
    pub(crate) owned_since: Option<Time>,
    pub(crate) health: Health,
    /// It was ready once: its end is not a failed start.
    pub(crate) served: bool,
    /// Calls of this runner in flight, with their deadlines.
    pub(crate) calls: Vec<(RequestId, Time)>,
    /// It refused a call: until then it gets no more calls than it had.
    pub(crate) full: Option<Full>,
    /// What is known of whether it still answers, now that it has served.
    pub(crate) hearing: Hearing,
    /// Calls in it end by their deadlines alone.
    pub(crate) hangs: bool,
    /// When it was first seen to run.
    pub(crate) running_since: Option<Time>,
    /// Its phase kept it from being ready in time; those who waited were told.
    pub(crate) given_up: bool,
    pub(crate) push: Option<Push>,
    /// What the last push of ours asked for: a `reclaim_after` other than this was written by somebody else.
    pub(crate) asked: Option<Time>,
    /// No push before this.
    pub(crate) push_after: Time,
    /// The API server did not answer a push: until then the pod is used without.
    pub(crate) waived_until: Time,
    pub(crate) delete: Option<Delete>,
    /// No delete of a failed pod before this.
    pub(crate) delete_after: Time,
    /// A delete was accepted, or a push found it gone; the watch has not shown it yet.
    pub(crate) doomed: bool,
    /// Stays although nobody uses it.
    pub(crate) kept: bool,
    /// Its owner wants to be rid of it early.
    pub(crate) retiring: Option<Why>,
    /// How it makes place for another image's pod, while it is [retiring](Self::retiring) for that.
    pub(crate) eviction: Option<Eviction>,
    /// It is not evicted before.
    pub(crate) left_alone_until: Time,
    /// When its owner was asked to evict it.
    pub(crate) asked_for_place: Option<Time>,
    /// Since when it is known to go.
    pub(crate) going_since: Option<Time>,
    /// Notice was given. No further one before this, since another runner may have objected.
    pub(crate) noticed: Option<Time>,
}

/// Whether a pod that has served still answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hearing {
    /// When it last answered, or was handed its first call since.
    pub(crate) heard: Time,
    /// When it last answered a call.
    pub(crate) answered: Time,
    /// It is being asked.
    pub(crate) asked: Option<Asked>,
    /// How often it was.
    pub(crate) checks: u64,
    /// From when on it is silent: it does not count towards the limit.
    pub(crate) silent_from: Option<Time>,
    /// The first of the calls in a row that ended by their deadlines.
    pub(crate) late: Option<Late>,
}

/// A question under way whether a pod still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) at: Time,
    pub(crate) by: Time,
}

/// A pod that takes no more calls for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// How many it has taken from here.
    pub(crate) room: usize,
    pub(crate) until: Time,
}

/// A call that ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) package: u64,
    pub(crate) at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nobody has asked yet.
    Unknown,
    Probing {
        since: Time,
        /// `reclaim_after` at that time: if it has moved since, another runner gets through to the pod.
        reclaim_after: Option<Time>,
    },
    Ready,
    /// Not ready in time: to be deleted, unless it turns ready before that succeeds.
    Overdue,
    /// Its object says so: it never recovers.
    Failed,
}

/// A push under way.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) sent: Time,
    pub(crate) judged: ResourceVersion,
}

/// A delete under way.
#[derive(Debug)]
pub(crate) struct Delete {
    pub(crate) sent: Time,
    /// The moment of an answer that said nothing.
    pub(crate) unknown: Option<Time>,
}

// === impl Tracked ===

impl Tracked {
    pub(crate) fn new(pod: Pod, owned_since: Option<Time>) -> Self {
        Self {
            pod,
            confirm_by: None,
            created_here: false,
            owned_since,
            health: Health::Unknown,
            served: false,
            calls: Vec::new(),
            full: None,
            hearing: Hearing::default(),
            hangs: false,
            running_since: None,
            given_up: false,
            push: None,
            asked: None,
            push_after: Time::default(),
            waived_until: Time::default(),
            delete: None,
            delete_after: Time::default(),
            doomed: false,
            kept: false,
            retiring: None,
            eviction: None,
            left_alone_until: Time::default(),
            asked_for_place: None,
            going_since: None,
            noticed: None,
        }
    }

    pub(crate) fn uid(&self) -> &Uid {
        &self.pod.uid
    }

    /// Not terminating, as far as known.
    pub(crate) fn stays(&self) -> bool {
        self.pod.terminating_since.is_none() && !self.doomed
    }

    /// Counts towards the limit: it stays, and has not fallen silent.
    pub(crate) fn counts(&self, now: Time) -> bool {
        self.stays() && !self.is_silent(now)
    }

    /// It runs and does not answer, or not any more.
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        self.silent_at().is_some_and(|at| at <= now)
    }

    /// Can serve now or later.
    pub(crate) fn lives(&self) -> bool {
        self.stays() && self.delete.is_none() && !self.failed()
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self.health, Health::Overdue | Health::Failed)
    }

    pub(crate) fn ready(&self) -> bool {
        self.lives() && self.health == Health::Ready
    }

    /// On its way to serve, for the first time or again.
    pub(crate) fn starting(&self, now: Time) -> bool {
        self.lives() && self.health != Health::Ready && !self.is_silent(now)
    }

    /// On its way, and somebody here wants it: its end would be a failed start.
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

    /// Whether `reclaim_after` is less than `margin` away, or unknown.
    pub(crate) fn lapses_within(&self, margin: Duration, now: Time) -> bool {
        self.pod.reclaim_after.is_none_or(|reclaim_after| reclaim_after <= now + margin)
    }

    /// Safe from its owner for long enough to be used right now; otherwise a push comes first.
    pub(crate) fn guarded(&self, skew: Duration, now: Time) -> bool {
        !self.lapses_within(skew, now) || now < self.waived_until
    }

    pub(crate) fn last_deadline(&self) -> Option<Time> {
        self.calls.iter().map(|&(_, deadline)| deadline).max()
    }
}
