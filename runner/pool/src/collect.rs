//! The owner's periodic look: which pods nobody needs any more.
//!
//! A healthy pod is deleted in one way only: past its `reclaim_after`, unused here, and in exactly the state judged. To
//! be rid of a pod early (it was replaced, or there are too many) the owner gives notice: it brings `reclaim_after`
//! near and stops using the pod. A runner with a call on it objects by pushing, as it would for any pod about to
//! lapse, and the owner asks again one scan later.

use crate::breakage::Breakage;
use crate::event::{Deletion, Why};
use crate::function::Function;
use crate::shared::Turn;
use crate::tracked::Tracked;
use crate::types::{Time, Uid};

// === impl Function ===

impl Function {
    /// Once per scan interval.
    pub(crate) fn scan(&mut self, turn: &mut Turn<'_>) {
        if turn.now < self.scan_at {
            return;
        }
        self.scan_at = turn.now + turn.shared.config.scan_interval;
        if !self.may_collect(turn) {
            return;
        }
        self.give_lifetime(turn);
        self.collect(|_, _| true, turn);
        self.choose_surplus(turn);
        self.start_replacement(turn);
    }

    /// Whether the view of this image is good enough to judge its pods unused.
    pub(crate) fn may_collect(&self, turn: &Turn<'_>) -> bool {
        turn.may_collect() && turn.now >= self.collect_from
    }

    /// A request about this image was answered by an error that says nothing, such as that of a webhook: those of its
    /// users may be as well.
    pub(crate) fn doubt(&mut self, turn: &Turn<'_>) {
        self.collect_from = turn.now + turn.shared.config.scan_interval;
    }

    /// A pod without `reclaim_after` would never lapse.
    fn give_lifetime(&mut self, turn: &mut Turn<'_>) {
        let until = self.reclaim_at(None, turn);
        for tracked in &mut self.pods {
            let timeless = tracked.pod.reclaim_after.is_none() && tracked.owned_since.is_some();
            if timeless && tracked.lives() && tracked.push.is_none() && turn.now >= tracked.push_after {
                tracked.send_push(until, turn);
            }
        }
    }

    /// Deletes what lapsed and is unused, of those that are `due`.
    pub(crate) fn collect(&mut self, due: impl Fn(&Tracked, Time) -> bool, turn: &mut Turn<'_>) {
        if !self.may_collect(turn) || !self.pods.iter().any(|tracked| due(tracked, turn.now)) {
            return;
        }
        let wanted = !self.queue.is_empty();
        self.choose_kept(turn);
        for tracked in &mut self.pods {
            let owned = tracked.owned_since.is_some() || turn.shared.broken(Breakage::CollectUnowned);
            let lapsed = tracked.pod.reclaim_after.is_some_and(|reclaim_after| turn.now > reclaim_after);
            let in_use = !tracked.calls.is_empty() || (wanted && tracked.retiring.is_none());
            if owned
                && lapsed
                && (tracked.retiring != Some(Why::Evicted) || tracked.is_evicted(turn.now))
                && turn.now >= tracked.delete_after
                && due(tracked, turn.now)
                && tracked.lives()
                && !in_use
                && !tracked.kept
                && tracked.push.is_none()
            {
                let why = tracked.retiring.unwrap_or(Why::Expired);
                tracked.send_delete(why, turn);
            }
        }
    }

    /// Marks pods above the limit, as long as those that stay are ready.
    fn choose_surplus(&mut self, turn: &Turn<'_>) {
        let limit = self.settings.limits.max_pods as usize;
        loop {
            let staying = |tracked: &&Tracked| tracked.ready() && tracked.retiring.is_none();
            if self.pods.iter().filter(staying).count() <= limit {
                return;
            }
            let current = &self.settings.template;
            let victim = self
                .pods
                .iter_mut()
                .filter(|tracked| tracked.ready() && tracked.retiring.is_none() && tracked.may_replace(turn))
                .max_by_key(|tracked| {
                    (!tracked.kept, tracked.pod.origin.differs_from(current), tracked.pod.name.slot)
                });
            let Some(victim) = victim else { return };
            victim.retiring = Some(Why::Surplus);
        }
    }

    /// Gives notice to retiring pods that are idle here, and lets those stay that are needed after all.
    pub(crate) fn retire(&mut self, turn: &mut Turn<'_>) {
        self.retire_replaced(turn);
        if self.pods.iter().all(|tracked| tracked.retiring.is_none()) {
            return;
        }
        let limit = self.settings.limits.max_pods as usize;
        let staying = self.pods.iter().filter(|other| other.ready() && other.retiring.is_none()).count();
        let again = self.scan_at;
        let may_collect = self.may_collect(turn);
        for tracked in &mut self.pods {
            if tracked.retiring == Some(Why::Evicted) {
                tracked.reconsider_eviction(may_collect, turn);
            }
            match tracked.retiring {
                Some(Why::Surplus) if staying < limit => tracked.retiring = None,
                Some(why) if tracked.calls.is_empty() && tracked.lives() && may_collect => {
                    let evicted = why == Why::Evicted;
                    let config = &turn.shared.config;
                    let notice = if evicted { config.eviction_notice() } else { config.notice() };
                    if turn.shared.broken(Breakage::RetireAtOnce) {
                        tracked.send_delete(why, turn);
                    } else if !tracked.lapses_within(notice, turn.now)
                        && tracked.push.is_none()
                        && turn.now >= tracked.push_after
                        && (evicted || tracked.noticed.is_none_or(|again| turn.now >= again))
                    {
                        tracked.noticed = Some(again);
                        tracked.send_push(turn.now + notice, turn);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes note of a delete's answer.
    pub(crate) fn deleted(&mut self, uid: &Uid, result: Deletion, turn: &mut Turn<'_>) {
        let retry = turn.shared.config.retry_interval();
        let Some(index) = self.find(uid) else { return };
        let tracked = &mut self.pods[index];
        match result {
            Deletion::Ok => {
                tracked.delete = None;
                tracked.doomed = true;
            }
            Deletion::Conflict => {
                tracked.delete = None;
                tracked.delete_after = turn.now + retry;
            }
            Deletion::NotFound => self.untrack(index, turn),
            Deletion::Unknown | Deletion::Unreachable => {
                if let Some(delete) = &mut tracked.delete {
                    delete.unknown = Some(turn.now);
                }
                if result == Deletion::Unreachable {
                    turn.doubt();
                } else {
                    self.doubt(turn);
                }
            }
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Owned for long enough that no other runner is likely to think the same of itself.
    pub(crate) fn may_replace(&self, turn: &Turn<'_>) -> bool {
        let stable = |since: Time| since + turn.shared.config.replace_after <= turn.now;
        self.owned_since.is_some_and(stable)
    }
}
