//! Replacing a pod that is outdated: the new one first, the old one after, one at a time.
//!
//! Any ready pod serves, whatever it was made from, so a replacement is never urgent: only the owner does it, only
//! after a while of undisturbed ownership, and never against a configuration or content newer than its own. A rolling
//! upgrade of the runners, where neighbours disagree on the version for a while, therefore does not make pods flap. Of
//! all pods that a runner owns it replaces one in twenty at a time.

use crate::event::Why;
use crate::function::Function;
use crate::shared::Turn;
use crate::tracked::{Health, Tracked};
use crate::types::{PodName, Uid};

/// A replacement under way.
#[derive(Debug)]
pub(crate) struct Replacement {
    old: Uid,
    new: PodName,
}

// === impl Function ===

impl Function {
    /// Creates the successor of one outdated pod, in a free slot or the surge slot.
    pub(crate) fn start_replacement(&mut self, turn: &mut Turn<'_>) {
        let limit = self.settings.limits.max_pods;
        let busy = self.replacement.is_some()
            || self.starting(turn.now) > 0
            || self.pods.iter().any(|tracked| tracked.retiring.is_some() || tracked.delete.is_some())
            || self.count(turn.now) > limit as usize;
        if busy {
            return;
        }
        let template = &self.settings.template;
        let outdated = |tracked: &&Tracked| {
            tracked.ready()
                && turn.yields(&tracked.pod.origin, template)
                && tracked.may_replace(turn)
                // What is about to lapse needs no successor; a kept pod never lapses.
                && (tracked.kept || !tracked.is_leaving(turn.shared.config.leaving(), turn.now))
        };
        let Some(old) = self.pods.iter().find(outdated) else { return };
        if !turn.shared.totals.may_replace() {
            // Its turn comes when another one's replacement is over.
            self.scan_at = self.scan_at.min(turn.now + turn.shared.config.retry_interval());
            return;
        }
        let (old, shard_key) = (old.pod.uid.clone(), old.pod.shard_key.clone());
        self.shard_key = shard_key;
        self.replacement = self.create_in(0..=limit, turn).ok().map(|new| Replacement { old, new });
    }

    /// Retires the old pod once the new one is ready; gives up when one of them is gone, or the ownership.
    pub(crate) fn retire_replaced(&mut self, turn: &Turn<'_>) {
        let Some(Replacement { old, new }) = &self.replacement else { return };
        // While the old pod ends there is still one pod more.
        let ends = |tracked: &Tracked| tracked.uid() == old && !tracked.stays() && !tracked.is_stuck(turn);
        if self.pods.iter().any(ends) {
            return;
        }
        let successor = self.pods.iter().find(|tracked| tracked.pod.name == *new && tracked.lives());
        let ready = successor.is_some_and(|tracked| tracked.health == Health::Ready);
        let coming = successor.is_some() || self.starts.iter().any(|start| start.name == *new);
        let (old, over) = (old.clone(), !coming);
        let goes_on = |tracked: &&mut Tracked| tracked.stays() && tracked.owned_since.is_some() && !over;
        let Some(tracked) = self.pod_mut(&old).filter(goes_on) else {
            if let Some(tracked) = self.pod_mut(&old) {
                tracked.retiring.take_if(|why| *why == Why::Replaced);
            }
            self.replacement = None;
            return;
        };
        if tracked.retiring != Some(Why::Evicted) {
            tracked.retiring = ready.then_some(Why::Replaced);
        }
    }

    /// It is being replaced, or takes another one's place.
    pub(crate) fn is_in_replacement(&self, tracked: &Tracked) -> bool {
        let is_part =
            |Replacement { old, new }: &Replacement| old == tracked.uid() || *new == tracked.pod.name;
        self.replacement.as_ref().is_some_and(is_part)
    }
}
