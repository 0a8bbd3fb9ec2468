//! Keeps `min_pods` pods of each image in the configuration's `kept_images`, although nobody uses
//! them.
//!
//! Only the owner keeps pods. It starts missing pods, and pushes the kept pods (writes a later
//! `reclaim_after`) as if they were in use. So to other runners a kept pod looks like a pod in use,
//! and they can send a call to it without pushing it first. Pods beyond the minimum should expire,
//! so the owner always pushes the same pods. A runner that no longer owns the image stops pushing,
//! and the new owner finds the pods with most of their lifetime left.

use crate::function::Function;
use crate::scale::NotCreated;
use crate::shared::Shared;
use crate::start::Backoff;

// === impl Function ===

impl Function {
    /// How many pods this runner keeps.
    pub(crate) fn min_pods_here(&self, shared: &Shared) -> usize {
        let keeps = shared.config.kept_images.get(&self.image).is_some_and(|key| shared.owned.owns(key));
        if keeps { self.settings.limits.min_pods as usize } else { 0 }
    }

    /// Starts missing pods, with a growing pause between starts. The pause grows after a successful
    /// start too, because pods may die as soon as they are ready.
    pub(crate) fn top_up(&mut self, shared: &mut Shared) {
        let is_short = |function: &Self, shared: &Shared| function.count(shared) < function.min_pods;
        self.top_up_pause.take_if(|pause| pause.forget_at() <= shared.now);
        let paused = |pause: &Backoff| !shared.reached(pause.retry_at);
        if !is_short(self, shared) || self.top_up_pause.as_ref().is_some_and(paused) {
            return;
        }
        let Some(key) = shared.config.kept_images.get(&self.image).cloned() else { return };
        let before = self.starts.len();
        self.shard_key = key;
        // After a failed start, start one pod at a time: the next start may fail, too.
        let mut failed = None;
        while failed.is_none()
            && is_short(self, shared)
            && (self.backoff.is_none() || self.starting(shared) == 0)
        {
            failed = self.create(shared).err();
        }
        if self.starts.len() > before || failed == Some(NotCreated::NoPlace) {
            self.top_up_pause = Some(Backoff::after(self.top_up_pause.as_ref(), None, shared.now));
            shared.unsettled = true;
        }
    }

    /// Chooses the pods that stay whatever their `reclaim_after`. Prefers, in this order, pods that
    /// have served, are not about to end, have the current `PodRecipe`, and have the lowest slots.
    /// A kept pod is pushed and therefore stays chosen.
    pub(crate) fn choose_kept(&mut self, shared: &Shared) {
        // Pods that are pushed in time never come this close to their expiry.
        let leaving = shared.config.notice();
        let (min_pods, recipe) = (self.min_pods, &self.settings.recipe);
        let mut candidates = Vec::new();
        for tracked in &mut self.pods {
            tracked.kept = false;
            if min_pods > 0 && tracked.lives() && tracked.retiring.is_none() {
                candidates.push(tracked);
            }
        }
        candidates.sort_by_key(|tracked| {
            let outdated = tracked.pod.recipe.differs_from(recipe);
            (!tracked.served, tracked.is_leaving(leaving, shared.now), outdated, tracked.pod.name.slot)
        });
        candidates.into_iter().take(min_pods).for_each(|tracked| tracked.kept = true);
    }
}
