//! Replaces outdated pods, one at a time. The new pod is ready before the old pod is retired.
//!
//! A recipe is the configuration and image content from which a pod is created (`PodRecipe`). A
//! ready pod serves whatever its recipe is, so a replacement is never urgent. Only the owner
//! replaces a pod, and only after it has owned the pod for a minute without interruption. It never
//! replaces a pod whose recipe has a newer configuration or content than the owner's recipe.
//! Therefore runners of different versions do not replace pods back and forth during a rolling
//! upgrade. At any time, a runner replaces at most one in twenty of its own pods, or one if it owns
//! fewer than twenty.

use crate::event::DeleteReason;
use crate::function::{Function, Replacement};
use crate::shared::Shared;
use crate::tracked::{Health, Tracked};

/// At most one in this many owned pods is replaced at a time, because a new template outdates all
/// pods at once.
const REPLACED_SHARE: usize = 20;

// === impl Function ===

impl Function {
    /// Creates the successor of one outdated pod, in a free slot or the surge slot (see `lib.rs`).
    pub(crate) fn start_replacement(&mut self, shared: &mut Shared) {
        let limit = self.settings.limits.max_pods;
        let ending = |tracked: &Tracked| tracked.retiring.is_some() || tracked.delete.is_some();
        let busy = self.replacement.is_some()
            || self.starting(shared) > 0
            || self.pods.iter().any(ending)
            || self.count(shared) > limit as usize;
        if busy {
            return;
        }
        let outdated = |tracked: &&Tracked| {
            tracked.ready()
                && tracked.pod.recipe.is_outdated_by(&self.settings.recipe)
                && tracked.may_replace(shared)
                // A pod that is about to expire needs no successor. A pod that `min_pods` keeps
                // never expires.
                && (tracked.kept || !tracked.is_leaving(shared.config.leaving(), shared.now))
        };
        let Some(old) = self.pods.iter().find(outdated) else { return };
        if shared.totals.replacing >= (shared.totals.owned / REPLACED_SHARE).max(1) {
            // Replacements of other images have reached the limit, so try again later.
            self.scan_at = self.scan_at.min(shared.now + shared.config.retry_interval());
            return;
        }
        let (old, shard_key) = (old.pod.uid.clone(), old.pod.shard_key.clone());
        self.shard_key = shard_key;
        self.replacement = self.create_in(0..=limit, shared).ok().map(|new| Replacement { old, new });
    }

    /// Retires the old pod once the new one is ready. Gives up when one of them is gone, or another
    /// runner owns the old pod.
    pub(crate) fn retire_replaced(&mut self, shared: &Shared) {
        let Some(Replacement { old, new }) = &self.replacement else { return };
        let successor = self.pods.iter().find(|tracked| tracked.pod.name == *new && tracked.lives());
        let ready = successor.is_some_and(|tracked| tracked.health == Health::Ready);
        let coming = successor.is_some() || self.starts.iter().any(|start| start.name == *new);
        let Some(index) = self.find(old) else {
            self.replacement = None;
            return;
        };
        let tracked = &mut self.pods[index];
        // While the old pod terminates, it still counts, so the image has one extra pod. The
        // replacement is not finished yet.
        if !tracked.stays() && !tracked.is_stuck(shared) {
            return;
        }
        if !coming || !tracked.stays() || tracked.owned_since.is_none() {
            tracked.retiring.take_if(|reason| *reason == DeleteReason::Replaced);
            self.replacement = None;
        } else if !tracked.evicting() {
            tracked.retiring = ready.then_some(DeleteReason::Replaced);
        }
    }

    /// Whether the pod is being replaced, or replaces another pod.
    pub(crate) fn is_in_replacement(&self, tracked: &Tracked) -> bool {
        self.replacement
            .as_ref()
            .is_some_and(|Replacement { old, new }| *old == tracked.pod.uid || *new == tracked.pod.name)
    }
}
