//! Which pod a call gets: the least loaded ready one with room, in turn among equals.
//!
//! A pod that is about to lapse or to be retired comes after all others, however loaded they are: it can then go
//! without anybody noticing. If a newer version can take over, it is not used at all. And a pod too close to its
//! `reclaim_after` is not used before a push was answered.

use std::cmp::Reverse;
use std::time::Duration;

use crate::breakage::Breakage;
use crate::event::Why;
use crate::function::Function;
use crate::shared::Turn;
use crate::tracked::Tracked;
use crate::types::Time;

// === impl Function ===

impl Function {
    /// The pod for the next call, as an index.
    pub(crate) fn pick(&mut self, turn: &Turn<'_>) -> Option<usize> {
        let count = self.pods.len();
        let skew = turn.skew();
        let leaving = turn.shared.config.leaving();
        let first = if self.next_pick < count { self.next_pick } else { 0 };
        let picked = (first..count)
            .chain(0..first)
            .filter(|&index| {
                let tracked = &self.pods[index];
                self.has_room(tracked, turn)
                    && (tracked.guarded(skew, turn.now) || turn.shared.broken(Breakage::NoPushFirst))
            })
            .min_by_key(|&index| {
                let tracked = &self.pods[index];
                // Of those that are leaving, the one to stay longest: the others are to lapse.
                let lapse = tracked.is_leaving(leaving, turn.now).then_some(tracked.pod.reclaim_after);
                (lapse.map(Reverse), tracked.load())
            })?;
        self.next_pick = picked + 1;
        Some(picked)
    }

    /// The pods that take calls.
    pub(crate) fn serving<'a>(&'a self, turn: &'a Turn<'_>) -> impl Iterator<Item = &'a Tracked> {
        self.pods.iter().filter(|tracked| {
            tracked.ready() && tracked.retiring != Some(Why::Evicted) && !self.is_superseded(tracked, turn)
        })
    }

    /// Takes calls, and is under `--max-concurrent-per-pod`.
    pub(crate) fn has_room(&self, tracked: &Tracked, turn: &Turn<'_>) -> bool {
        tracked.ready()
            // Others have waited for its place for longer than this call.
            && tracked.retiring != Some(Why::Evicted)
            && tracked.load() < tracked.room(self.settings.limits.per_pod as usize, turn.now)
            && !self.is_superseded(tracked, turn)
    }

    /// It is being replaced, as far as can be told here: it is leaving, and a pod that it is outdated beside stays longer.
    fn is_superseded(&self, tracked: &Tracked, turn: &Turn<'_>) -> bool {
        tracked.is_leaving(turn.shared.config.leaving(), turn.now)
            && self.pods.iter().any(|other| {
                other.ready()
                    && other.retiring.is_none()
                    && turn.yields(&tracked.pod.origin, &other.pod.origin)
                    && (tracked.retiring.is_some() || other.pod.reclaim_after > tracked.pod.reclaim_after)
            })
    }
}

// === impl Tracked ===

impl Tracked {
    /// Better left alone, if there is a choice.
    pub(crate) fn is_leaving(&self, margin: Duration, now: Time) -> bool {
        self.retiring.is_some() || self.lapses_within(margin, now)
    }
}
