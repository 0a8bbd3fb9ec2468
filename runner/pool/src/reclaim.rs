//! `reclaim_after`: before this time the owner does not delete a pod that another runner uses. A
//! pod lapses when this time passes.
//!
//! Every runner that uses the pod pushes `reclaim_after` forward. While calls are in flight, the
//! runner pushes well before the pod lapses. If the pod may already have lapsed by the owner's
//! clock, the push comes *before* the use. The owner deletes only a lapsed pod, and only in the
//! resource version that it judged. So if a push and a delete race, only one can succeed.

use std::time::Duration;

use crate::config::Config;
use crate::event::{Action, WriteOutcome};
use crate::function::Function;
use crate::shared::PoolStep;
use crate::start::ANSWER_TIMEOUT;
use crate::tracked::{Push, Tracked};
use crate::types::Time;

/// One push reserves a pod for at most this long. Longer calls push again.
const LONGEST_RESERVATION: Duration = Duration::from_hours(1);
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
const LONGEST_THROTTLE: Duration = Duration::from_mins(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

// === impl Config ===

impl Config {
    /// How long an unused pod stays: the TTL, but at least four times the clock skew.
    pub(crate) fn lifetime(&self, ttl: Duration) -> Duration {
        ttl.max(self.skew.saturating_mul(4)).max(SHORTEST_LIFETIME)
    }

    /// How long before its end a pod's end is announced. It suffices for a late watch and a push.
    pub(crate) fn notice(&self) -> Duration {
        self.skew.saturating_mul(2)
    }

    /// A pod that lapses within this time gets calls only if no other pod can take them. It is
    /// longer than the notice by any clock, and shorter than the time that a pod in regular use has
    /// left. That is three quarters of its lifetime.
    pub(crate) fn leaving(&self) -> Duration {
        self.skew.saturating_mul(3)
    }

    /// How far `reclaim_after` may lag behind before it is pushed again.
    fn throttle(&self, ttl: Duration) -> Duration {
        (self.lifetime(ttl) / 4).min(LONGEST_THROTTLE)
    }

    /// The pause after a conflict or a missing answer. It is well below the scan interval. After an
    /// outage, the owner waits one scan interval, so that every user has pushed.
    pub(crate) fn retry_interval(&self) -> Duration {
        (self.scan_interval / 4).clamp(Duration::from_millis(100), LONGEST_RETRY)
    }
}

// === impl Function ===

impl Function {
    /// The `reclaim_after` for a use that starts now and lasts until `deadline` at most.
    pub(crate) fn reclaim_at(&self, deadline: Option<Time>, step: &PoolStep<'_>) -> Time {
        let lifetime = step.shared.config.lifetime(self.settings.limits.ttl);
        let reserved = deadline.map_or(step.now, |deadline| deadline.min(step.now + LONGEST_RESERVATION));
        reserved.max(step.now + lifetime)
    }

    /// Pushes pods that are in use or kept if their `reclaim_after` lags behind. Also pushes pods
    /// that a waiting call could use, but that lapse too soon.
    pub(crate) fn push_pods(&mut self, step: &mut PoolStep<'_>) {
        self.choose_kept(step);
        let waiting = self.queue.front().map(|waiter| waiter.deadline);
        for index in 0..self.pods.len() {
            let tracked = &self.pods[index];
            if tracked.push.is_some() || !tracked.lives() {
                continue;
            }
            let wanted = waiting.filter(|_| self.has_room(tracked, step) && !tracked.is_guarded(step));
            // The owner gave notice, but the pod should stay after all.
            let recalled = tracked.noticed.is_some() && tracked.retiring.is_none();
            // Kept pods are pushed only if ready: a push tells other runners that this runner
            // reaches the pod.
            let in_use = tracked.load() > 0
                || recalled
                || (tracked.kept && tracked.ready())
                // A pod without `reclaim_after` would never lapse, so its owner sets one.
                || (tracked.pod.reclaim_after.is_none() && tracked.owned_since.is_some());
            let deadline = tracked.last_deadline().max(wanted);
            let due = wanted.is_some() || (in_use && self.lags(tracked, deadline, step));
            if due && step.reached(tracked.push_after) {
                let until = self.reclaim_at(deadline, step);
                self.pods[index].noticed.take_if(|_| recalled);
                self.pods[index].send_push(until, None, step);
            }
        }
    }

    /// Whether a push would move `reclaim_after` by the throttle or more.
    fn lags(&self, tracked: &Tracked, deadline: Option<Time>, step: &PoolStep<'_>) -> bool {
        let config = &step.shared.config;
        let Some(reclaim_after) = tracked.pod.reclaim_after else { return true };
        let due = reclaim_after + config.throttle(self.settings.limits.ttl);
        let by_lifetime = due - config.lifetime(self.settings.limits.ttl);
        let by_deadline = deadline.filter(|&deadline| deadline >= due).map(|_| due - LONGEST_RESERVATION);
        step.reached(by_deadline.map_or(by_lifetime, |at| at.min(by_lifetime)))
    }

    /// Records a push's answer. After a successful push, the pool has already seen the changed pod,
    /// which ended the push.
    pub(crate) fn push_answered(&mut self, index: usize, result: WriteOutcome, step: &mut PoolStep<'_>) {
        let tracked = &mut self.pods[index];
        if matches!(result, WriteOutcome::Ok | WriteOutcome::Conflict) {
            tracked.waived_until = Time::default();
        }
        let Some(push) = tracked.push.take() else { return };
        match result {
            WriteOutcome::Ok | WriteOutcome::Conflict => {
                if tracked.pod.resource_version == push.resource_version {
                    tracked.push_after = step.now + step.shared.config.retry_interval();
                }
            }
            WriteOutcome::Gone => {
                tracked.doomed = true;
                Self::stop_probe(tracked, step);
            }
            WriteOutcome::Unknown | WriteOutcome::Unreachable => {
                tracked.waive_push(step);
                self.delay_collection(result == WriteOutcome::Unreachable, step);
            }
        }
    }

    /// Treats answers that never came as lost.
    pub(crate) fn expire_answers(&mut self, step: &PoolStep<'_>) {
        for tracked in &mut self.pods {
            if tracked.push.take_if(|push| step.reached(push.expires_at)).is_some() {
                tracked.waive_push(step);
            }
            tracked.delete.take_if(|expires_at| step.reached(*expires_at));
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Whether the pod can be used now, because its owner will not delete it soon. Otherwise a push
    /// must come first.
    pub(crate) fn is_guarded(&self, step: &PoolStep<'_>) -> bool {
        !self.lapses_within(step.shared.config.skew, step.now) || step.now < self.waived_until
    }

    pub(crate) fn send_push(&mut self, until: Time, place_wanted: Option<Time>, step: &mut PoolStep<'_>) {
        let resource_version = self.pod.resource_version.clone();
        self.pushed = Some(until);
        self.push =
            Some(Push { expires_at: step.now + ANSWER_TIMEOUT, resource_version: resource_version.clone() });
        let (uid, name) = (self.pod.uid.clone(), self.pod.name.clone());
        step.act(Action::Push { uid, resource_version, name, until, place_wanted });
    }

    /// The API server does not answer. The pod is used without a push, and the push is retried.
    fn waive_push(&mut self, step: &PoolStep<'_>) {
        let retry = step.shared.config.retry_interval();
        self.push_after = step.now + retry;
        self.waived_until = step.now + 3 * retry;
    }
}
