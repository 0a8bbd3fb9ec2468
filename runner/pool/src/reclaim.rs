//! `reclaim_after`: before this time, the owner does not delete a healthy pod, because another
//! runner may use it. A pod expires when this time passes. `lib.rs` explains owner and notice.
//!
//! Every runner that uses the pod pushes `reclaim_after` forward. While calls are in flight, the
//! runner pushes well before the pod expires. If the pod may already have expired by the owner's
//! clock, the push comes *before* the use. The owner deletes only an expired pod, and only if its
//! resource version has not changed since the decision. So if a push and a delete race, only one
//! can succeed.

use std::time::Duration;

use crate::config::Config;
use crate::event::{Action, WriteOutcome};
use crate::function::Function;
use crate::shared::Shared;
use crate::start::ANSWER_TIMEOUT;
use crate::tracked::Tracked;
use crate::types::Time;

/// One push reserves a pod for at most this long. For a longer call, the runner pushes again.
const LONGEST_RESERVATION: Duration = Duration::from_hours(1);
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
const LONGEST_THROTTLE: Duration = Duration::from_mins(1);
/// The longest notice of an eviction. It leaves time for a watch event and a push by a runner that
/// uses the pod. It is short because calls wait for the pod's place.
const EVICTION_NOTICE: Duration = Duration::from_secs(3);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

// === impl Config ===

impl Config {
    /// How long an unused pod stays: the TTL, but at least four times the clock skew.
    pub(crate) fn lifetime(&self, ttl: Duration) -> Duration {
        ttl.max(self.skew.saturating_mul(4)).max(SHORTEST_LIFETIME)
    }

    /// When the owner gives notice, the pod has this long to live. This leaves the other runners
    /// time to see the notice in a late watch, and to push.
    pub(crate) fn notice(&self) -> Duration {
        self.skew.saturating_mul(2)
    }

    /// The time between the notice of an eviction and the delete.
    pub(crate) fn eviction_notice(&self) -> Duration {
        self.notice().min(EVICTION_NOTICE)
    }

    /// A pod that expires within this time gets calls only if no other pod can take them. Despite
    /// clock skew, this time is longer than the notice. A pod in regular use is not affected: it
    /// has at least three quarters of its lifetime left.
    pub(crate) fn leaving(&self) -> Duration {
        self.skew.saturating_mul(3)
    }

    /// The pause after a conflict or a missing answer. After an outage, the owner deletes no unused
    /// pod for one scan interval. In this time, every runner must push the pods that it uses, so
    /// the pause is well below the scan interval.
    pub(crate) fn retry_interval(&self) -> Duration {
        (self.scan_interval / 4).clamp(Duration::from_millis(100), LONGEST_RETRY)
    }
}

// === impl Function ===

impl Function {
    /// The `reclaim_after` for a use that starts now and lasts until `deadline` at most.
    pub(crate) fn reclaim_at(&self, deadline: Option<Time>, shared: &Shared) -> Time {
        let lifetime = shared.config.lifetime(self.settings.limits.ttl);
        let reserved = deadline.map_or(shared.now, |deadline| deadline.min(shared.now + LONGEST_RESERVATION));
        reserved.max(shared.now + lifetime)
    }

    /// Pushes pods that are in use or kept (as one of `min_pods`) if [`Self::lags`] is true for
    /// them. Also pushes pods that a waiting call could use, but that expire too soon.
    pub(crate) fn push_pods(&mut self, shared: &mut Shared) {
        self.choose_kept(shared);
        let waiting = self.queue.front().map(|(_, _, deadline)| deadline);
        for index in 0..self.pods.len() {
            let tracked = &self.pods[index];
            if tracked.push.is_some() || !tracked.lives() {
                continue;
            }
            let wanted = waiting.filter(|_| self.has_room(tracked, shared) && !tracked.is_guarded(shared));
            // This runner gave notice as the owner, but the pod should stay after all.
            let recalled = tracked.noticed.is_some() && tracked.retiring.is_none();
            // Kept pods are pushed only if ready: a push tells other runners that this runner
            // reaches the pod.
            let in_use = !tracked.calls.is_empty()
                || recalled
                || (tracked.kept && tracked.ready())
                // A pod without `reclaim_after` would never expire, so its owner sets one.
                || (tracked.pod.reclaim_after.is_none() && tracked.owned_since.is_some());
            let deadline = tracked.last_deadline().max(wanted);
            let due = wanted.is_some() || (in_use && self.lags(tracked, deadline, shared));
            if due && shared.reached(tracked.push_after) {
                let until = self.reclaim_at(deadline, shared);
                self.pods[index].noticed.take_if(|_| recalled);
                self.pods[index].send_push(until, None, shared);
            }
        }
    }

    /// Whether a push would move `reclaim_after` by at least a quarter of the lifetime, or by
    /// [`LONGEST_THROTTLE`] if that is shorter.
    fn lags(&self, tracked: &Tracked, deadline: Option<Time>, shared: &Shared) -> bool {
        let lifetime = shared.config.lifetime(self.settings.limits.ttl);
        let Some(reclaim_after) = tracked.pod.reclaim_after else { return true };
        let due = reclaim_after + (lifetime / 4).min(LONGEST_THROTTLE);
        let by_lifetime = due - lifetime;
        let by_deadline = deadline.filter(|&deadline| deadline >= due).map(|_| due - LONGEST_RESERVATION);
        shared.reached(by_deadline.map_or(by_lifetime, |at| at.min(by_lifetime)))
    }

    /// Records a push's answer. If the push succeeded, the pool has already processed `Seen` with
    /// the changed pod, and `push` is no longer set.
    pub(crate) fn pushed(&mut self, index: usize, result: WriteOutcome, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if matches!(result, WriteOutcome::Ok | WriteOutcome::Conflict) {
            tracked.waived_until = Time::default();
        }
        if tracked.push.take().is_none() {
            return;
        }
        match result {
            WriteOutcome::Ok | WriteOutcome::Conflict => {
                tracked.push_after = shared.now + shared.config.retry_interval();
            }
            WriteOutcome::Gone => {
                tracked.doomed = true;
                Self::stop_probe(tracked, shared);
            }
            WriteOutcome::Unknown | WriteOutcome::Unreachable => {
                tracked.waive_push(shared);
                self.delay_collection(result == WriteOutcome::Unreachable, shared);
            }
        }
    }

    /// Gives up pushes and deletes that the API server has not answered within
    /// [`ANSWER_TIMEOUT`].
    pub(crate) fn expire_answers(&mut self, shared: &Shared) {
        for tracked in &mut self.pods {
            if tracked.push.take_if(|expires_at| shared.reached(*expires_at)).is_some() {
                tracked.waive_push(shared);
            }
            tracked.delete.take_if(|expires_at| shared.reached(*expires_at));
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Whether a call may use the pod without a push first: the owner will not delete the pod soon,
    /// or a push has just failed.
    pub(crate) fn is_guarded(&self, shared: &Shared) -> bool {
        !self.expires_within(shared.config.skew, shared.now) || shared.now < self.waived_until
    }

    pub(crate) fn send_push(&mut self, until: Time, place_wanted: Option<Time>, shared: &mut Shared) {
        let resource_version = self.pod.resource_version.clone();
        self.pushed = Some(until);
        self.push = Some(shared.now + ANSWER_TIMEOUT);
        let (uid, name) = (self.pod.uid.clone(), self.pod.name.clone());
        shared.act(Action::Push { uid, resource_version, name, until, place_wanted });
    }

    /// The push got an error or no answer. Calls use the pod anyway, and the push is retried.
    fn waive_push(&mut self, shared: &Shared) {
        let retry = shared.config.retry_interval();
        self.push_after = shared.now + retry;
        self.waived_until = shared.now + 3 * retry;
    }
}
