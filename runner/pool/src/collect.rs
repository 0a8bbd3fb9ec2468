//! The owner's periodic scan for pods that nobody needs any more. `lib.rs` explains the terms.
//!
//! The owner deletes a healthy pod only after its `reclaim_after`, only if it has no call on the
//! pod, and only if the pod's resource version has not changed since the decision. To delete a pod
//! early (replaced, evicted or above the limit), the owner gives notice: it sets `reclaim_after` to
//! a near time, and prefers other pods. If another runner has a call on the pod, that runner pushes
//! `reclaim_after` forward again, like for any pod that expires soon. If the notice was for an
//! eviction, the owner then cancels the eviction. After any other notice, the owner gives notice
//! again one scan later.

use std::time::Duration;

use crate::event::{Action, DeleteReason, WriteOutcome};
use crate::function::Function;
use crate::shared::{Shared, Watch};
use crate::start::ANSWER_TIMEOUT;
use crate::tracked::Tracked;
use crate::types::Time;

/// How long this runner must have owned a pod without interruption before it replaces the pod.
const REPLACE_AFTER: Duration = Duration::from_mins(1);

// === impl Function ===

impl Function {
    /// Once per scan interval: deletes unused pods, marks pods above the limit, and starts the
    /// replacement of an outdated pod.
    pub(crate) fn scan(&mut self, shared: &mut Shared) {
        if shared.reached(self.scan_at) {
            self.scan_at = shared.now + shared.config.scan_interval;
            if self.may_collect(shared) {
                self.choose_kept(shared);
                let wanted = !self.queue.is_empty();
                for tracked in &mut self.pods {
                    if !tracked.evicting() && (!wanted || tracked.retiring.is_some()) {
                        tracked.collect(shared);
                    }
                }
                self.choose_surplus(shared);
                self.start_replacement(shared);
            }
            shared.reached(self.scan_at);
        }
    }

    /// Whether the view of this image is current enough to conclude that its pods are unused.
    pub(crate) fn may_collect(&self, shared: &Shared) -> bool {
        shared.may_collect() && shared.now >= self.collect_from
    }

    /// The API server did not answer a request about this image, or answered with an error, such as
    /// an error of a webhook. Other runners that use the image's pods may have the same problem. So
    /// this runner collects no pod of the image until the other runners have had time to push
    /// again. If the API server is `unreachable`, this runner collects no pod of any image.
    pub(crate) fn delay_collection(&mut self, unreachable: bool, shared: &mut Shared) {
        let from = shared.now + shared.config.scan_interval;
        match &mut shared.watch {
            Watch::Current { collect_from } if unreachable => *collect_from = from.max(*collect_from),
            _ => self.collect_from = from,
        }
    }

    /// Marks the ready pods that exceed the limit as surplus. Pods that this runner may not replace
    /// are not marked.
    fn choose_surplus(&mut self, shared: &Shared) {
        let limit = self.settings.limits.max_pods as usize;
        let recipe = &self.settings.recipe;
        let mut staying: Vec<_> =
            self.pods.iter_mut().filter(|tracked| tracked.ready() && tracked.retiring.is_none()).collect();
        let excess = staying.len().saturating_sub(limit);
        staying.retain(|tracked| tracked.may_replace(shared));
        staying.sort_by_key(|tracked| {
            (!tracked.kept, tracked.pod.recipe.differs_from(recipe), tracked.pod.name.slot)
        });
        for tracked in staying.into_iter().rev().take(excess) {
            tracked.retiring = Some(DeleteReason::Surplus);
        }
    }

    /// Gives notice to retiring pods that have no calls of this runner. Keeps those needed again.
    /// Deletes evicted pods at the end of their notice; the scan deletes the other retiring pods.
    pub(crate) fn retire(&mut self, shared: &mut Shared) {
        self.retire_replaced(shared);
        let limit = self.settings.limits.max_pods as usize;
        let staying = self.pods.iter().filter(|other| other.ready() && other.retiring.is_none()).count();
        let (again, may_collect) = (self.scan_at, self.may_collect(shared));
        for tracked in &mut self.pods {
            tracked.reconsider_eviction(may_collect, shared);
            if tracked.retiring == Some(DeleteReason::Surplus) && staying < limit {
                tracked.retiring = None;
            }
            let idle = tracked.calls.is_empty() && tracked.lives() && tracked.push.is_none();
            if tracked.retiring.is_none() || !idle || !may_collect {
                continue;
            }
            let config = &shared.config;
            let evicting = tracked.evicting();
            let notice = if evicting { config.eviction_notice() } else { config.notice() };
            if !tracked.expires_within(notice, shared.now)
                && shared.reached(tracked.push_after)
                && (evicting || tracked.noticed.is_none_or(|again| shared.reached(again)))
            {
                tracked.noticed = Some(again);
                tracked.send_push(shared.now + notice, None, shared);
            } else if tracked.eviction_is_due(shared) {
                tracked.collect(shared);
            }
        }
    }

    /// Records the result of a request to delete a pod.
    pub(crate) fn deleted(&mut self, index: usize, result: WriteOutcome, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        match result {
            WriteOutcome::Ok => {
                tracked.delete = None;
                tracked.doomed = true;
            }
            WriteOutcome::Conflict => {
                tracked.delete = None;
                tracked.delete_after = shared.now + shared.config.retry_interval();
            }
            WriteOutcome::Gone => self.untrack(index, shared),
            WriteOutcome::Unknown | WriteOutcome::Unreachable => {
                let again = shared.now + shared.config.retry_interval();
                tracked.delete = tracked.delete.map(|_| again);
                self.delay_collection(result == WriteOutcome::Unreachable, shared);
            }
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Deletes the pod if this runner owns it, it has expired, and it is unused.
    fn collect(&mut self, shared: &mut Shared) {
        let expired = self.pod.reclaim_after.is_some_and(|at| at < shared.now);
        if expired
            && self.owned_since.is_some()
            && self.lives()
            && self.calls.is_empty()
            && !self.kept
            && self.push.is_none()
            && shared.reached(self.delete_after)
        {
            self.send_delete(self.retiring.unwrap_or(DeleteReason::Expired), shared);
        }
    }

    /// Whether the pod is being evicted and the notice is over. A notice by another runner that
    /// also considers itself the owner does not count.
    fn eviction_is_due(&self, shared: &Shared) -> bool {
        let expired = |at: Time| shared.reached(at + Duration::from_millis(1));
        self.evicting()
            && self.pod.reclaim_after == self.pushed
            && shared.reached(self.eviction.0)
            && self.pod.reclaim_after.is_some_and(expired)
    }

    /// Whether this runner has owned the pod so long that no other runner is likely to consider
    /// itself the owner.
    pub(crate) fn may_replace(&self, shared: &Shared) -> bool {
        self.owned_since.is_some_and(|since| since + REPLACE_AFTER <= shared.now)
    }

    pub(crate) fn send_delete(&mut self, reason: DeleteReason, shared: &mut Shared) {
        self.ending_since.get_or_insert(shared.now);
        self.delete = Some(shared.now + ANSWER_TIMEOUT);
        if !matches!(reason, DeleteReason::Failed | DeleteReason::Hung) {
            Function::stop_probe(self, shared);
        }
        let (uid, name) = (self.pod.uid.clone(), self.pod.name.clone());
        let resource_version = self.pod.resource_version.clone();
        shared.act(Action::Delete { uid, resource_version, name, reason });
    }
}
