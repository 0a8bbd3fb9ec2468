//! Pods that are kept although nobody uses them: `min_pods` of each image in the configuration's `keep`.
//!
//! Only the owner keeps. It starts what is missing, and pushes the `reclaim_after` of the kept pods as if they were in
//! use, so that to other runners they look like any pod and a call on them needs no push first. Pods beyond them
//! lapse; therefore it must always be the same ones that are pushed. A runner that no longer owns the image stops
//! pushing, and the new owner finds the pods with most of their lifetime left.

use crate::breakage::Breakage;
use crate::capacity::NotCreated;
use crate::config::Settings;
use crate::function::Function;
use crate::shared::Turn;
use crate::start::Backoff;
use crate::tracked::Tracked;
use crate::types::{ShardKey, Time};

// === impl Function ===

impl Function {
    /// Pods to be kept are missing.
    pub(crate) fn is_short(&self, now: Time) -> bool {
        self.count(now) < self.keep
    }

    /// Starts what is missing. Each time the next pause is longer, for a while: pods may die as soon as they are
    /// ready, which is no failed start.
    pub(crate) fn top_up(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.top_up_pause.take_if(|pause| pause.forget_at() <= now);
        let paused = self.top_up_pause.as_ref().is_some_and(|pause| now < pause.retry_at);
        if !self.is_short(now) || paused || turn.shared.broken(Breakage::KeepUnstarted) {
            return;
        }
        let Some(key) = self.settings.keep.clone() else { return };
        let before = self.starts.len();
        self.shard_key = key;
        // After a failure one at a time: it may not have been the last.
        let mut failed = None;
        while failed.is_none() && self.is_short(now) && (self.backoff.is_none() || self.starting(now) == 0) {
            failed = self.create(turn).err();
        }
        if self.starts.len() > before || failed == Some(NotCreated::NoPlace) {
            self.top_up_pause = Some(Backoff::after(self.top_up_pause.as_ref(), None, now));
        }
    }

    /// When [`top_up`](Self::top_up) has to look again.
    pub(crate) fn top_up_timer(&self, turn: &Turn<'_>) -> Option<Time> {
        let pause = self.top_up_pause.as_ref().filter(|_| self.is_short(turn.now))?;
        Some(pause.retry_at).filter(|&at| at > turn.now)
    }

    /// Chooses the pods that stay whatever their `reclaim_after`: those that have served, that are not about to go, of
    /// what is configured, in the lowest slots. What is pushed for being kept therefore stays chosen.
    pub(crate) fn choose_kept(&mut self, turn: &Turn<'_>) {
        self.pods.iter_mut().for_each(|tracked| tracked.kept = false);
        if self.keep == 0 || turn.shared.broken(Breakage::KeepUnprotected) {
            return;
        }
        // Pods that are pushed in time never come that near to their lapse.
        let leaving = turn.shared.config.notice();
        let current = &self.settings.template;
        let by_turns = turn.shared.broken(Breakage::KeepByTurns);
        let stays = |tracked: &&mut Tracked| tracked.lives() && tracked.retiring.is_none();
        let mut candidates: Vec<_> = self.pods.iter_mut().filter(stays).collect();
        candidates.sort_by_key(|tracked| {
            let first = by_turns.then_some(tracked.pod.reclaim_after);
            let outdated = tracked.pod.origin.differs_from(current);
            (first, !tracked.served, tracked.is_leaving(leaving, turn.now), outdated, tracked.pod.name.slot)
        });
        for tracked in candidates.into_iter().take(self.keep) {
            tracked.kept = true;
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Pushed although nobody uses it. Only once it is ready: to others a push says that somebody gets through to it.
    pub(crate) fn is_pushed_idle(&self) -> bool {
        self.kept && self.ready()
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// How many pods of an image with these settings this runner keeps.
    pub(crate) fn keeps(&self, settings: &Settings) -> usize {
        match &settings.keep {
            Some(key) if self.keeps_under(key) => settings.limits.min_pods as usize,
            _ => 0,
        }
    }

    /// Whether images with this key are kept by this runner.
    pub(crate) fn keeps_under(&self, key: &ShardKey) -> bool {
        self.shared.ownership.owns(key) || self.shared.broken(Breakage::KeepUnowned)
    }
}
