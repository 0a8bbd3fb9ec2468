//! The life of a call: granted at once or queued, granted later, cancelled or finished. A call is
//! counted exactly once at any time: in the queue, or at its pod.
//!
//! A call gets the least loaded ready pod with room. Pods with equal load take turns.
//!
//! A pod that expires or retires soon gets a call only if no other pod has room, even if the
//! others have more calls. So the pod can end without affecting calls. The pod gets no calls at all
//! if a pod with a newer recipe (see `replace.rs`) can take over. A pod too close to its
//! `reclaim_after` must be pushed (see `lib.rs`) before it gets a call, unless the API server does
//! not answer.

use std::cmp::Reverse;
use std::time::Duration;

use crate::event::{Action, Rejection, Verdict};
use crate::function::Function;
use crate::shared::{Call, Shared};
use crate::tracked::Tracked;
use crate::types::{Phase, Reason, RequestId, Time, Uid};

/// How long a refusal by a pod limits this runner's calls on the pod. The limit is the number of
/// this runner's other calls that were on the pod at the refusal. The limit is temporary: other
/// runners' calls may have filled the pod, and these calls end.
const FULL_FOR: Duration = Duration::from_millis(500);
/// The error for callers while the runner has not listed the pods yet. Without a list, it creates
/// no pod.
pub(crate) const NOT_LISTED: &str = "the runner could not list the pods of the function namespace: check that it reaches the API server and \
                          that its Role has the verbs list and watch on pods";

// === impl Function ===

impl Function {
    /// Grants a new call a pod, queues it, or rejects it.
    pub(crate) fn request(&mut self, id: RequestId, deadline: Time, shared: &mut Shared) {
        if deadline <= shared.now {
            shared.reject(id, Rejection::DeadlineExceeded { waiting: None });
        } else if let Some(error) = self.paused_error(shared) {
            shared.reject(id, error);
        } else if let Some(index) = self.pick(shared) {
            let crowded = self.serving(shared).all(|tracked| tracked.calls.len() >= self.waitlist());
            self.grant(index, id, deadline, shared);
            // If all pods already had `--max-waitlist-length` calls, start one more pod, unless the
            // pods that are starting can take the calls above that number. Ignores failures: the
            // call already has a pod.
            if crowded && self.excess(shared) > self.starting(shared) * self.waitlist() {
                let _ = self.create(shared);
            }
        } else if self.queue.len() >= self.settings.limits.queue as usize {
            shared.reject(id, Rejection::QueueFull { limit: self.settings.limits.queue });
        } else {
            self.queue.push(id, shared.now, deadline);
            self.place_call(id, deadline, None, shared);
        }
    }

    fn place_call(&self, id: RequestId, deadline: Time, pod: Option<Uid>, shared: &mut Shared) {
        let call = Call { image: self.image.clone(), deadline, pod, since: shared.now };
        shared.calls.insert(id, call);
    }

    fn grant(&mut self, index: usize, id: RequestId, deadline: Time, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if tracked.calls.is_empty() {
            tracked.liveness.last_sign = shared.now;
        }
        tracked.calls.push((id, deadline));
        let uid = tracked.pod.uid.clone();
        self.place_call(id, deadline, Some(uid.clone()), shared);
        shared.act(Action::Grant { id, uid });
    }

    /// Grants pods to the waiting calls, in their order.
    pub(crate) fn grant_waiters(&mut self, shared: &mut Shared) {
        while let Some((id, since, deadline)) = self.queue.front()
            && let Some(index) = self.pick(shared)
        {
            self.queue.remove(id, since, deadline);
            self.grant(index, id, deadline, shared);
        }
    }

    /// Removes a call from the queue or from its pod. Without a verdict, the call was cancelled.
    pub(crate) fn end_call(
        &mut self,
        id: RequestId,
        call: &Call,
        verdict: Option<Verdict>,
        shared: &mut Shared,
    ) {
        let Some(uid) = &call.pod else { return self.queue.remove(id, call.since, call.deadline) };
        let Some(index) = self.find(uid) else { return };
        let tracked = &mut self.pods[index];
        tracked.calls.retain(|&(other, _)| other != id);
        match verdict {
            None => {}
            Some(Verdict::Served) => {
                let liveness = &mut tracked.liveness;
                (liveness.last_sign, liveness.last_served, liveness.late) = (shared.now, shared.now, None);
            }
            // `tracked.calls` no longer contains the refused call.
            Some(Verdict::Full) => {
                (tracked.full_with, tracked.full_until) = (tracked.calls.len(), shared.now + FULL_FOR);
            }
            Some(Verdict::Broken) => tracked.record_broken(shared.now),
            Some(Verdict::Silent) => self.record_silent(index, shared),
            Some(Verdict::Late { package }) => self.record_late(index, package, call.since, shared),
        }
    }

    /// Rejects the calls that have waited too long.
    pub(crate) fn expire_waiters(&mut self, shared: &mut Shared) {
        while let Some((id, since, deadline)) = self.queue.most_urgent()
            && shared.reached(deadline)
        {
            self.queue.remove(id, since, deadline);
            shared.reject(
                id,
                match self.wants_since {
                    Some(_) => Rejection::NoRoom,
                    None => Rejection::DeadlineExceeded { waiting: self.pending_reason() },
                },
            );
        }
        if self.any_ready() {
            (self.unready_since, self.lost) = (None, false);
            return;
        }
        if self.wants_since.is_some() {
            self.unready_since = None;
            return;
        }
        let unready_since = *self.unready_since.get_or_insert(shared.now);
        // If a pod of the image has served, the image can start, although that pod is now gone or
        // does not answer. So the ready timeout does not apply: the calls wait until their
        // deadlines.
        if shared.may_create() && (self.lost || self.pods.iter().any(|tracked| tracked.served)) {
            return;
        }
        let timeout = shared.config.ready_timeout;
        while let Some((id, since, deadline)) = self.queue.front()
            && shared.reached(unready_since.max(since) + timeout)
        {
            self.queue.remove(id, since, deadline);
            let waiting = if shared.may_create() {
                self.pending_reason()
            } else {
                Some(Reason::new("not_listed", NOT_LISTED))
            };
            shared.reject(id, Rejection::NotReady { timeout, waiting });
        }
    }

    fn pending_reason(&self) -> Option<Reason> {
        self.pods.iter().find_map(|tracked| match &tracked.pod.phase {
            Phase::Pending(Some(reason)) if tracked.stays() => Some(reason.clone()),
            _ => None,
        })
    }

    /// The pod for the next call, as an index.
    pub(crate) fn pick(&mut self, shared: &Shared) -> Option<usize> {
        let count = self.pods.len();
        let leaving = shared.config.leaving();
        let first = if self.next_pick < count { self.next_pick } else { 0 };
        let picked = (first..count)
            .chain(0..first)
            .filter(|&index| self.has_room(&self.pods[index], shared) && self.pods[index].is_guarded(shared))
            .min_by_key(|&index| {
                let tracked = &self.pods[index];
                // Of the leaving pods, prefer the one that stays longest, so that the others can
                // expire.
                let expiry = tracked.is_leaving(leaving, shared.now).then_some(tracked.pod.reclaim_after);
                (expiry.map(Reverse), tracked.calls.len())
            })?;
        self.next_pick = picked + 1;
        Some(picked)
    }

    /// The pods that take calls.
    pub(crate) fn serving<'a>(&'a self, shared: &'a Shared) -> impl Iterator<Item = &'a Tracked> {
        self.pods.iter().filter(|tracked| self.takes_calls(tracked, shared))
    }

    /// Whether the pod takes calls and is below `--max-concurrent-per-pod`.
    pub(crate) fn has_room(&self, tracked: &Tracked, shared: &Shared) -> bool {
        self.takes_calls(tracked, shared)
            && tracked.calls.len() < tracked.room(self.settings.limits.per_pod as usize, shared)
    }

    /// Whether the pod is ready, and neither being evicted nor superseded. A pod is evicted if
    /// another image needs its place (see `capacity`), or if there are more pods than the capacity.
    fn takes_calls(&self, tracked: &Tracked, shared: &Shared) -> bool {
        tracked.ready() && !tracked.evicting() && !self.is_superseded(tracked, shared)
    }

    /// Whether the pod seems to be replaced: it is leaving, and a pod with a newer recipe stays
    /// longer.
    fn is_superseded(&self, tracked: &Tracked, shared: &Shared) -> bool {
        tracked.is_leaving(shared.config.leaving(), shared.now)
            && self.pods.iter().any(|other| {
                other.ready()
                    && other.retiring.is_none()
                    && tracked.pod.recipe.is_outdated_by(&other.pod.recipe)
                    && (tracked.retiring.is_some() || other.pod.reclaim_after > tracked.pod.reclaim_after)
            })
    }
}

// === impl Tracked ===

impl Tracked {
    /// Number of calls that the pod takes from this runner, at most `most`.
    pub(crate) fn room(&self, most: usize, shared: &Shared) -> usize {
        if shared.reached(self.full_until) { most } else { most.min(self.full_with) }
    }
}
