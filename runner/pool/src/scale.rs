//! Decides when to start one more pod, and under which name. Handles the answer to each create.
//!
//! The load of a pod is its calls in flight plus its share of the waiting calls. A starting pod
//! counts as a pod with room for `--max-waitlist-length` calls. One more pod is started when the
//! least loaded pod has a load of `--max-waitlist-length`. No call is reserved for a particular
//! pod. The shares are computed from the totals, so they shrink when a caller leaves.

use crate::event::{Action, Creation, OwnedShards, Rejection};
use crate::function::Function;
use crate::shared::Shared;
use crate::start::{ANSWER_TIMEOUT, Backoff, Start};
use crate::tracked::Tracked;
use crate::types::{PodName, Uid};

/// A warm-up ends after this many failed starts in a row. One failure is not enough: registry,
/// quota or node may be unavailable when the runner starts.
const WARM_STARTS: u32 = 5;

/// Why a pod is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCreated {
    /// Only because the capacity for pods is used up: no place is free (see `capacity`).
    NoPlace,
    Other,
}

// === impl Function ===

impl Function {
    /// Starts the pods that the waiting calls, a warm-up and `min_pods` need.
    pub(crate) fn scale(&mut self, shared: &mut Shared) {
        if self.queue.is_empty() {
            self.quota_refusals = 0;
        }
        let before = self.starts.len();
        let mut failed = None;
        while failed.is_none() && self.waiters_want_pod(shared) {
            failed = self.create(shared).err();
        }
        self.want_place(failed == Some(NotCreated::NoPlace), self.starts.len() > before, shared);
        self.warm_up(shared);
        self.top_up(shared);
    }

    /// Starts the pod of a warm-up. Forgets the warm-up if another runner owns the image, too many
    /// starts failed, or no place is free: no other pod is evicted for a warm-up.
    fn warm_up(&mut self, shared: &mut Shared) {
        let Some(key) = self.warm.clone() else { return };
        let failed = self.backoff.as_ref().is_some_and(|backoff| backoff.starts >= WARM_STARTS);
        if self.warms(shared) && !failed {
            if self.count(shared) == 0 && !self.is_paused(shared) {
                self.shard_key = key;
                if self.create(shared) == Err(NotCreated::NoPlace) {
                    self.warm = None;
                }
            }
        } else if failed || (shared.may_create() && !matches!(shared.owned, OwnedShards::None)) {
            self.warm = None;
        }
    }

    /// Whether a warm-up is under way and this runner owns the image.
    pub(crate) fn warms(&self, shared: &Shared) -> bool {
        self.warm.as_ref().is_some_and(|key| shared.owned.owns(key))
    }

    fn waiters_want_pod(&self, shared: &Shared) -> bool {
        let waitlist = self.waitlist();
        let room = |tracked: &Tracked| tracked.room(waitlist, shared).saturating_sub(tracked.calls.len());
        let room: usize = self.serving(shared).map(room).sum();
        let waiting = self.queue.len();
        waiting > room && waiting - room + self.excess(shared) > self.starting(shared) * waitlist
    }

    /// Calls in flight beyond the waitlist of their pods.
    pub(crate) fn excess(&self, shared: &Shared) -> usize {
        self.serving(shared).map(|tracked| tracked.calls.len().saturating_sub(self.waitlist())).sum()
    }

    pub(crate) fn waitlist(&self) -> usize {
        self.settings.limits.waitlist as usize
    }

    /// Creates a pod in the lowest free slot below the limit, if allowed. While all pods terminate,
    /// have failed or do not answer, the surge slot (see `lib.rs`) is available as well.
    pub(crate) fn create(&mut self, shared: &mut Shared) -> Result<PodName, NotCreated> {
        let limit = self.settings.limits.max_pods;
        if self.count(shared) >= limit as usize {
            let evicting = self.pods.iter().any(Tracked::evicting);
            return Err(if evicting { NotCreated::NoPlace } else { NotCreated::Other });
        }
        let surge = self.starts.is_empty() && !self.pods.iter().any(|tracked| tracked.may_serve(shared));
        self.create_in(0..limit.saturating_add(surge.into()), shared)
    }

    /// Creates a pod in the first of `slots` that is free.
    pub(crate) fn create_in(
        &mut self,
        mut slots: impl Iterator<Item = u32>,
        shared: &mut Shared,
    ) -> Result<PodName, NotCreated> {
        if !shared.may_create() || self.is_paused(shared) {
            return Err(NotCreated::Other);
        }
        let name = slots.find_map(|slot| self.free_name(slot, shared)).ok_or(NotCreated::Other)?;
        if !self.has_place(shared) {
            return Err(NotCreated::NoPlace);
        }
        let expires_at = shared.now + ANSWER_TIMEOUT;
        self.starts.push(Start { name: name.clone(), answered: false, shown: None, expires_at });
        shared.act(Action::Create {
            name: name.clone(),
            shard_key: self.shard_key.clone(),
            recipe: self.settings.recipe.clone(),
            reclaim_after: self.reclaim_at(self.queue.last_deadline(), shared),
        });
        Ok(name)
    }

    /// A name for a new pod in this slot. `None` if the slot is held by a create under way, or by a
    /// pod that is not stuck in termination.
    fn free_name(&self, slot: u32, shared: &Shared) -> Option<PodName> {
        let holders = || self.pods.iter().filter(|tracked| tracked.pod.name.slot == slot);
        let created = self.starts.iter().any(|start| start.name.slot == slot && start.shown.is_none());
        if created || holders().any(|holder| !holder.is_stuck(shared)) {
            return None;
        }
        // All pods in this slot are stuck. Names of one slot differ in `past`: `None`, or the uid
        // of a stuck pod. There is one more such name than stuck pods, so at least one is free.
        let mut pasts = std::iter::once(None).chain(holders().map(|holder| Some(holder.pod.uid.clone())));
        let past = pasts.find(|past| holders().all(|holder| holder.pod.name.past != *past))?;
        Some(PodName { image: self.image.clone(), slot, past })
    }

    /// Records a create's answer.
    pub(crate) fn created(&mut self, name: &PodName, result: Creation, shared: &mut Shared) {
        let Some(index) = self.starts.iter().position(|start| start.name == *name) else { return };
        match result {
            Creation::Ok(uid) => {
                self.quota_refusals = 0;
                self.starts.swap_remove(index);
                match self.find(&uid) {
                    Some(index) => self.pods[index].created_here = true,
                    // The pod was created and is already gone.
                    None => self.start_failed(None, None, shared),
                }
            }
            Creation::Exists => self.await_holder(index, shared),
            Creation::Unknown | Creation::Unreachable => {
                self.await_holder(index, shared);
                self.delay_collection(result == Creation::Unreachable, shared);
            }
            Creation::OverQuota(reason) => {
                self.starts.swap_remove(index);
                self.over_quota(reason, shared);
            }
            Creation::Refused(reason) => {
                self.starts.swap_remove(index);
                self.start_failed(Some(Rejection::PodFailed { reason }), None, shared);
            }
        }
    }

    /// A pod of this name exists or may exist. It may be terminating; the watch will show this.
    fn await_holder(&mut self, index: usize, shared: &Shared) {
        let name = &self.starts[index].name;
        if self.pods.iter().any(|tracked| tracked.pod.name == *name) {
            self.starts.swap_remove(index);
        } else {
            self.starts[index].await_pod(shared.now);
        }
    }

    pub(crate) fn expire_starts(&mut self, shared: &Shared) {
        self.starts.retain_mut(|start| {
            let expired = shared.reached(start.expires_at);
            if !expired || start.answered || start.shown.is_some() {
                return !expired;
            }
            start.await_pod(shared.now);
            !shared.reached(start.expires_at)
        });
        self.backoff.take_if(|backoff| shared.reached(backoff.forget_at()));
    }

    /// A start failed. The waiting calls are rejected at once if no other pod can serve them. If
    /// `error` is `None`, the calls wait for the next start. The pod `except` does not count as a
    /// pod that can serve.
    pub(crate) fn start_failed(
        &mut self,
        error: Option<Rejection>,
        except: Option<&Uid>,
        shared: &mut Shared,
    ) {
        self.backoff = Some(Backoff::after(self.backoff.as_ref(), error.clone(), shared.now));
        shared.unsettled = true;
        let Some(error) = error else { return };
        let other = |tracked: &Tracked| Some(&tracked.pod.uid) != except && tracked.may_serve(shared);
        let hope = self.unseen_starts() > 0 || self.pods.iter().any(other);
        while !hope && let Some((id, since, deadline)) = self.queue.front() {
            self.queue.remove(id, since, deadline);
            shared.reject(id, error.clone());
        }
    }

    /// The answer to a new call while starts are paused and no pod is ready or starting.
    pub(crate) fn paused_error(&self, shared: &Shared) -> Option<Rejection> {
        let hope = !self.is_paused(shared) || self.starting(shared) > 0 || self.any_ready();
        self.backoff.as_ref()?.error.clone().filter(|_| !hope)
    }

    pub(crate) fn is_paused(&self, shared: &Shared) -> bool {
        self.backoff.as_ref().is_some_and(|backoff| !shared.reached(backoff.retry_at))
    }
}
