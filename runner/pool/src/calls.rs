//! The life of a call: granted at once or queued, granted later, cancelled or finished. A call is
//! counted in exactly one place at any time.
//!
//! A call gets the least loaded ready pod with room. Pods with equal load take turns.
//!
//! A pod that is about to lapse or retire comes after all other pods, whatever their load. So it
//! can end without affecting calls. It gets no calls at all if a newer pod can take over. A pod too
//! close to its `reclaim_after` gets no call before a push was answered.

use std::cmp::Reverse;
use std::time::Duration;

use crate::event::{Action, Rejection, Verdict};
use crate::function::Function;
use crate::queue::Waiter;
use crate::shared::{Call, Place, PoolStep};
use crate::tracked::{Full, Tracked};
use crate::types::{Phase, Reason, RequestId, Time};

/// How long a pod that refused a call gets no more calls from this runner than it had. Other
/// runners may need its room meanwhile.
const FULL_FOR: Duration = Duration::from_millis(500);
/// The error for callers while the runner has not listed the pods yet. Without a list, it creates
/// no pod.
pub(crate) const NOT_LISTED: &str = "the runner could not list the pods of the function namespace: check that it reaches the API server and \
                          that its Role has the verbs list and watch on pods";

// === impl Function ===

impl Function {
    /// Takes in a call.
    pub(crate) fn request(&mut self, id: RequestId, deadline: Time, step: &mut PoolStep<'_>) {
        if deadline <= step.now {
            step.reject(id, Rejection::DeadlineExceeded);
        } else if let Some(error) = self.paused_error(step) {
            step.reject(id, error);
        } else if let Some(index) = self.pick(step) {
            let crowded = self.is_crowded(step);
            self.grant(index, id, deadline, step);
            if crowded {
                self.scale_beyond(step);
            }
        } else if self.queue.len() >= self.settings.limits.queue as usize {
            step.reject(id, Rejection::QueueFull { limit: self.settings.limits.queue });
        } else {
            let ticket = self.queue.push(Waiter { id, deadline, since: step.now });
            self.place_call(id, deadline, Place::Queue(ticket), step);
        }
    }

    fn place_call(&self, id: RequestId, deadline: Time, place: Place, step: &mut PoolStep<'_>) {
        let call = Call { image: self.image.clone(), deadline, place, since: step.now };
        step.shared.calls.insert(id, call);
    }

    fn grant(&mut self, index: usize, id: RequestId, deadline: Time, step: &mut PoolStep<'_>) {
        let tracked = &mut self.pods[index];
        if tracked.calls.is_empty() {
            tracked.liveness.last_sign = step.now;
        }
        tracked.calls.push((id, deadline));
        let uid = tracked.pod.uid.clone();
        self.place_call(id, deadline, Place::Pod(uid.clone()), step);
        step.act(Action::Grant { id, uid });
    }

    /// Grants pods to the waiting calls, in their order.
    pub(crate) fn grant_waiters(&mut self, step: &mut PoolStep<'_>) {
        while !self.queue.is_empty() {
            let Some(index) = self.pick(step) else { break };
            let Some(waiter) = self.queue.pop() else { break };
            self.grant(index, waiter.id, waiter.deadline, step);
        }
    }

    /// Removes a call from its place. Without a verdict it was cancelled.
    pub(crate) fn end_call(
        &mut self,
        id: RequestId,
        Call { place, since, .. }: &Call,
        verdict: Option<Verdict>,
        step: &mut PoolStep<'_>,
    ) {
        let uid = match place {
            Place::Queue(ticket) => return self.queue.remove(*ticket),
            Place::Pod(uid) => uid,
        };
        let Some(index) = self.find(uid) else { return };
        let tracked = &mut self.pods[index];
        tracked.calls.retain(|&(other, _)| other != id);
        match verdict {
            None => {}
            Some(Verdict::Served) => tracked.liveness.record_served(step.now),
            // `load` no longer counts the refused call.
            Some(Verdict::Full) => {
                tracked.full = Some(Full { room: tracked.load(), until: step.now + FULL_FOR });
            }
            Some(Verdict::Broken) => tracked.record_broken(step.now),
            Some(Verdict::Silent) => self.record_silent(index, step),
            Some(Verdict::Late { package }) => self.record_late(index, package, *since, step),
        }
    }

    /// Rejects the calls that have waited too long.
    pub(crate) fn expire_waiters(&mut self, step: &mut PoolStep<'_>) {
        while self.queue.first_deadline().is_some_and(|deadline| step.reached(deadline)) {
            let Some(id) = self.queue.pop_first_deadline() else { break };
            let no_room = self.wants_since.is_some();
            step.reject(id, if no_room { Rejection::NoRoom } else { Rejection::DeadlineExceeded });
        }
        if self.any_ready() {
            (self.unready_since, self.lost) = (None, false);
            return;
        }
        if self.wants_since.is_some() {
            self.unready_since = None;
            return;
        }
        let unready_since = *self.unready_since.get_or_insert(step.now);
        // A pod that had served is lost. The waiting calls wait for the next pod until their
        // deadlines.
        if step.may_create() && (self.lost || self.pods.iter().any(|tracked| tracked.served)) {
            return;
        }
        let timeout = step.shared.config.ready_timeout;
        while let Some(waiter) = self.queue.front()
            && step.reached(unready_since.max(waiter.since) + timeout)
        {
            let waiting = if step.may_create() {
                self.pending_reason()
            } else {
                Some(Reason::new("not_listed", NOT_LISTED))
            };
            step.reject(waiter.id, Rejection::NotReady { timeout, waiting });
            self.queue.pop();
        }
    }

    fn pending_reason(&self) -> Option<Reason> {
        self.pods.iter().find_map(|tracked| match &tracked.pod.phase {
            Phase::Pending(Some(reason)) if tracked.stays() => Some(reason.clone()),
            _ => None,
        })
    }

    /// The pod for the next call, as an index.
    pub(crate) fn pick(&mut self, step: &PoolStep<'_>) -> Option<usize> {
        let count = self.pods.len();
        let leaving = step.shared.config.leaving();
        let first = if self.next_pick < count { self.next_pick } else { 0 };
        let picked = (first..count)
            .chain(0..first)
            .filter(|&index| self.has_room(&self.pods[index], step) && self.pods[index].is_guarded(step))
            .min_by_key(|&index| {
                let tracked = &self.pods[index];
                // Of the leaving pods, prefer the one that stays longest, so that the others can
                // lapse.
                let lapse = tracked.is_leaving(leaving, step.now).then_some(tracked.pod.reclaim_after);
                (lapse.map(Reverse), tracked.load())
            })?;
        self.next_pick = picked + 1;
        Some(picked)
    }

    /// The pods that take calls.
    pub(crate) fn serving<'a>(&'a self, step: &'a PoolStep<'_>) -> impl Iterator<Item = &'a Tracked> {
        self.pods.iter().filter(|tracked| self.takes_calls(tracked, step))
    }

    /// Whether the pod takes calls and is below `--max-concurrent-per-pod`.
    pub(crate) fn has_room(&self, tracked: &Tracked, step: &PoolStep<'_>) -> bool {
        self.takes_calls(tracked, step)
            && tracked.load() < tracked.room(self.settings.limits.per_pod as usize, step)
    }

    /// Whether the pod is ready, and neither evicted nor superseded. An evicted pod's place is for
    /// another image, whose calls have waited longer.
    fn takes_calls(&self, tracked: &Tracked, step: &PoolStep<'_>) -> bool {
        tracked.ready() && !tracked.evicting() && !self.is_superseded(tracked, step)
    }

    /// Whether the pod seems to be replaced: it is leaving, and a pod with a newer recipe stays
    /// longer.
    fn is_superseded(&self, tracked: &Tracked, step: &PoolStep<'_>) -> bool {
        tracked.is_leaving(step.shared.config.leaving(), step.now)
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
    pub(crate) fn room(&self, most: usize, step: &PoolStep<'_>) -> usize {
        self.full.filter(|full| !step.reached(full.until)).map_or(most, |full| most.min(full.room))
    }
}
