//! When one more pod is started, under which name, and the outcome of each create.
//!
//! The load of a pod is its calls in flight plus its share of the waiting calls. A starting pod has
//! the share that it was started for. One more pod is started when the least loaded pod has a load
//! of `--max-waitlist-length`. No call is reserved for a particular pod. The shares follow from the
//! totals, so they shrink when a caller leaves.

use crate::event::{Action, Creation, OwnedShards, Rejection};
use crate::function::Function;
use crate::shared::PoolStep;
use crate::start::{Backoff, Start};
use crate::tracked::Tracked;
use crate::types::{Pod, PodName, Uid};

/// A warm-up ends after this many failed starts in a row. One failure is not enough: registry,
/// quota or node may be unavailable when the runner starts.
const WARM_STARTS: u32 = 5;

/// Why a pod is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCreated {
    /// Only because no place for a pod is free.
    NoPlace,
    Other,
}

// === impl Function ===

impl Function {
    /// Starts the pods that the waiting calls, a warm-up and `min_pods` need.
    pub(crate) fn scale(&mut self, step: &mut PoolStep<'_>) {
        if self.queue.is_empty() {
            self.quota_refusals = 0;
        }
        let before = self.starts.len();
        let mut failed = None;
        while failed.is_none() && self.waiters_want_pod(step) {
            failed = self.create(step).err();
        }
        self.want_place(failed == Some(NotCreated::NoPlace), self.starts.len() > before, step);
        self.warm_up(step);
        self.top_up(step);
    }

    /// Starts the pod of a warm-up. Forgets the warm-up if another runner owns the image, too many
    /// starts failed, or no place is free: no other pod is evicted for a warm-up.
    fn warm_up(&mut self, step: &mut PoolStep<'_>) {
        let Some(key) = self.warm.clone() else { return };
        let failed = self.backoff.as_ref().is_some_and(|backoff| backoff.starts >= WARM_STARTS);
        if self.warms(step) && !failed {
            if self.count(step) == 0 && !self.is_paused(step) {
                self.shard_key = key;
                if self.create(step) == Err(NotCreated::NoPlace) {
                    self.warm = None;
                }
            }
        } else if failed || (step.may_create() && !matches!(step.shared.owned, OwnedShards::None)) {
            self.warm = None;
        }
    }

    /// Whether a warm-up is under way and this runner owns the image.
    pub(crate) fn warms(&self, step: &PoolStep<'_>) -> bool {
        self.warm.as_ref().is_some_and(|key| step.shared.owned.owns(key))
    }

    /// Whether every ready pod has so many calls that the next call should cause the start of one
    /// more pod.
    pub(crate) fn is_crowded(&self, step: &PoolStep<'_>) -> bool {
        self.serving(step).all(|tracked| tracked.load() >= self.waitlist())
    }

    /// Starts one more pod after a call was granted although all pods were crowded. Not needed if
    /// the starting pods will take the excess.
    pub(crate) fn scale_beyond(&mut self, step: &mut PoolStep<'_>) {
        if self.excess(step) > self.starting(step) * self.waitlist() {
            // If no place is free, the existing pods serve the call.
            let _ = self.create(step);
        }
    }

    fn waiters_want_pod(&self, step: &PoolStep<'_>) -> bool {
        let waitlist = self.waitlist();
        let room = |tracked: &Tracked| tracked.room(waitlist, step).saturating_sub(tracked.load());
        let room: usize = self.serving(step).map(room).sum();
        let waiting = self.queue.len();
        waiting > room && waiting - room + self.excess(step) > self.starting(step) * waitlist
    }

    /// Calls in flight beyond the waitlist of their pods.
    fn excess(&self, step: &PoolStep<'_>) -> usize {
        self.serving(step).map(|tracked| tracked.load().saturating_sub(self.waitlist())).sum()
    }

    fn waitlist(&self) -> usize {
        self.settings.limits.waitlist as usize
    }

    /// Creates a pod in the lowest free slot below the limit, if allowed. While all pods terminate,
    /// have failed or do not answer, the surge slot is available as well.
    pub(crate) fn create(&mut self, step: &mut PoolStep<'_>) -> Result<PodName, NotCreated> {
        let limit = self.settings.limits.max_pods;
        if self.count(step) >= limit as usize {
            let evicting = self.pods.iter().any(Tracked::evicting);
            return Err(if evicting { NotCreated::NoPlace } else { NotCreated::Other });
        }
        let answers = |tracked: &Tracked| tracked.lives() && !tracked.is_silent(step);
        let surge = self.starts.is_empty() && !self.pods.iter().any(answers);
        self.create_in(0..limit.saturating_add(surge.into()), step)
    }

    /// Creates a pod in the first of `slots` that is free.
    pub(crate) fn create_in(
        &mut self,
        mut slots: impl Iterator<Item = u32>,
        step: &mut PoolStep<'_>,
    ) -> Result<PodName, NotCreated> {
        if !step.may_create() || self.is_paused(step) {
            return Err(NotCreated::Other);
        }
        let name = slots.find_map(|slot| self.free_name(slot, step)).ok_or(NotCreated::Other)?;
        if !self.has_place(step) {
            return Err(NotCreated::NoPlace);
        }
        self.starts.push(Start::new(name.clone(), step.now));
        step.act(Action::Create {
            name: name.clone(),
            shard_key: self.shard_key.clone(),
            recipe: self.settings.recipe.clone(),
            reclaim_after: self.reclaim_at(self.queue.last_deadline(), step),
        });
        Ok(name)
    }

    /// A name for a new pod in this slot. `None` if a create under way or a pod that is not stuck
    /// holds the slot.
    fn free_name(&self, slot: u32, step: &PoolStep<'_>) -> Option<PodName> {
        let holders = || self.pods.iter().filter(|tracked| tracked.pod.name.slot == slot);
        let created = self.starts.iter().any(|start| start.name.slot == slot && start.unseen());
        if created || holders().any(|holder| !holder.is_stuck(step)) {
            return None;
        }
        // There is one more name than stuck pods, so at least one name is free.
        let mut pasts = std::iter::once(None).chain(holders().map(|holder| Some(holder.uid().clone())));
        let past = pasts.find(|past| holders().all(|holder| holder.pod.name.past != *past))?;
        Some(PodName { image: self.image.clone(), slot, past })
    }

    /// Records a create's answer.
    pub(crate) fn created(&mut self, name: &PodName, result: Creation, step: &mut PoolStep<'_>) {
        let Some(index) = self.starts.iter().position(|start| start.name == *name) else { return };
        match result {
            Creation::Ok(uid) => {
                self.quota_refusals = 0;
                self.starts.swap_remove(index);
                match self.pod_mut(&uid) {
                    Some(tracked) => tracked.created_here = true,
                    // The pod was created and is already gone.
                    None => self.start_failed(None, None, step),
                }
            }
            Creation::Exists => self.await_holder(index, step),
            Creation::Unknown | Creation::Unreachable => {
                self.await_holder(index, step);
                self.delay_collection(result == Creation::Unreachable, step);
            }
            Creation::OverQuota(reason) => {
                self.starts.swap_remove(index);
                self.over_quota(reason, step);
            }
            Creation::Refused(reason) => {
                self.starts.swap_remove(index);
                self.start_failed(Some(Rejection::PodFailed { reason }), None, step);
            }
        }
    }

    /// A pod of this name exists or may exist. It may be terminating; the watch will show this.
    fn await_holder(&mut self, index: usize, step: &PoolStep<'_>) {
        let name = &self.starts[index].name;
        if self.pods.iter().any(|tracked| tracked.pod.name == *name) {
            self.starts.swap_remove(index);
        } else {
            self.starts[index].await_pod(step.now);
        }
    }

    /// The watch shows a new pod, which may be one that is being created.
    pub(crate) fn start_shown(&mut self, pod: &Pod) {
        self.starts.retain(|start| !(start.answered && start.name == pod.name));
        if let Some(start) = self.starts.iter_mut().find(|start| start.name == pod.name) {
            start.shown.get_or_insert_with(|| pod.uid.clone());
        }
    }

    pub(crate) fn expire_starts(&mut self, step: &PoolStep<'_>) {
        self.starts.retain_mut(|start| {
            let expired = step.reached(start.expires_at);
            if !expired || start.answered || !start.unseen() {
                return !expired;
            }
            start.await_pod(step.now);
            !step.reached(start.expires_at)
        });
        self.backoff.take_if(|backoff| step.reached(backoff.forget_at()));
    }

    /// A start failed. The waiting calls are rejected at once if no other pod can serve them.
    /// Without an error, they wait for the next start. The pod `except` is not expected to serve.
    pub(crate) fn start_failed(
        &mut self,
        error: Option<Rejection>,
        except: Option<&Uid>,
        step: &mut PoolStep<'_>,
    ) {
        self.backoff = Some(Backoff::after(self.backoff.as_ref(), error.clone(), step.now));
        step.unsettled = true;
        let Some(error) = error else { return };
        let others = |tracked: &&Tracked| Some(tracked.uid()) != except;
        let hope = self.starts.iter().any(Start::unseen)
            || self.pods.iter().filter(others).any(|tracked| tracked.lives() && !tracked.is_silent(step));
        while !hope && let Some(waiter) = self.queue.pop() {
            step.reject(waiter.id, error.clone());
        }
    }

    /// The answer to a new call while starts are paused and no pod can be expected to serve it.
    pub(crate) fn paused_error(&self, step: &PoolStep<'_>) -> Option<Rejection> {
        let hope = !self.is_paused(step) || self.starting(step) > 0 || self.any_ready();
        self.backoff.as_ref()?.error.clone().filter(|_| !hope)
    }

    pub(crate) fn is_paused(&self, step: &PoolStep<'_>) -> bool {
        self.backoff.as_ref().is_some_and(|backoff| !step.reached(backoff.retry_at))
    }
}
