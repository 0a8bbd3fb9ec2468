//! What the watch shows. It is late, may miss things, and a list may be older than what is already known; nothing
//! here assumes more than that each pod's changes come in order.

use crate::breakage::Breakage;
use crate::event::{Rejection, Why};
use crate::function::Function;
use crate::shared::Turn;
use crate::start::CONFIRM_WITHIN;
use crate::tracked::{Delete, Health, Tracked};
use crate::types::{Phase, Pod, Uid};

// === impl Function ===

impl Function {
    /// The watch shows a pod, new or changed.
    pub(crate) fn observe(&mut self, pod: Pod, turn: &mut Turn<'_>) {
        let foreign = pod.origin.differs_from(&self.settings.template);
        if foreign && turn.shared.broken(Breakage::AdoptOnlyCurrent) {
            return;
        }
        let uid = pod.uid.clone();
        self.start_shown(&pod);
        if self.find(&uid).is_none() {
            self.track(pod.clone(), turn);
        }
        let Some(index) = self.find(&uid) else { return };
        let tracked = &mut self.pods[index];
        if tracked.pod.resource_version != pod.resource_version {
            // A conflict asked for another look; this is it.
            tracked.push_after = tracked.push_after.min(turn.now);
            tracked.delete_after = tracked.delete_after.min(turn.now);
        }
        // It is what came of the push under way, or what that will fail at. Its answer may be late or lost, and
        // somebody may have given notice.
        if !turn.shared.broken(Breakage::BelieveLatePush) {
            tracked.push.take_if(|push| push.judged != pod.resource_version);
        }
        let awaited = tracked.awaited();
        tracked.confirm_by = None;
        if pod.phase == Phase::Running {
            tracked.running_since.get_or_insert(turn.now);
        }
        if let Health::Probing { since, .. } = &mut tracked.health
            && tracked.given_up
            && pod.phase == Phase::Running
        {
            // What kept it is over: now it has its time.
            (*since, tracked.given_up) = (turn.now, false);
        }
        let asked_for = tracked.is_asked_for(&pod);
        if pod.reclaim_after < tracked.pod.reclaim_after && pod.reclaim_after != tracked.asked {
            // Another one who thinks to own it has given notice: for users it runs by our clock, too.
            tracked.delete_after = turn.now + turn.shared.config.eviction_notice();
        }
        tracked.pod = pod;
        tracked.own(turn);
        if tracked.pod.terminating_since.is_some() {
            tracked.going_since.get_or_insert(turn.now);
        }
        let idle = tracked.may_be_evicted(turn) && !tracked.kept && tracked.owned_since.is_some();
        if asked_for && idle && self.queue.is_empty() && self.may_collect(turn) {
            self.pods[index].begin_eviction(turn);
        }
        let tracked = &mut self.pods[index];
        if tracked.pod.terminating_since.is_some() {
            Self::stop_probe(tracked, turn);
            if awaited {
                self.start_failed(None, None, turn);
            }
            return;
        }
        if let Phase::Failed(reason) = &tracked.pod.phase {
            let reason = reason.clone();
            self.fail(index, Rejection::PodFailed { reason }, turn);
        }
    }

    /// Takes a pod on, with the calls that it may still have here.
    pub(crate) fn track(&mut self, pod: Pod, turn: &mut Turn<'_>) {
        turn.shared.images.insert(pod.uid.clone(), self.image.clone());
        let at = self.pods.partition_point(|other| (&other.pod.name, other.uid()) < (&pod.name, &pod.uid));
        let mut tracked = Tracked::new(pod, None);
        tracked.running_since = (tracked.pod.phase == Phase::Running).then_some(turn.now);
        tracked.own(turn);
        tracked.calls = turn.shared.orphans.remove(tracked.uid()).unwrap_or_default();
        tracked.served = !tracked.calls.is_empty();
        self.pods.insert(at, tracked);
    }

    /// The pod is gone, or must be taken for gone.
    pub(crate) fn untrack(&mut self, index: usize, turn: &mut Turn<'_>) {
        let mut tracked = self.pods.remove(index);
        self.lost |= tracked.served;
        let awaited = tracked.awaited();
        Self::stop_probe(&mut tracked, turn);
        let uid = tracked.uid().clone();
        turn.shared.images.remove(&uid);
        if !tracked.calls.is_empty() && !turn.shared.broken(Breakage::ForgetVanishedCalls) {
            turn.shared.orphans.insert(uid, tracked.calls);
        }
        self.start_gone(&tracked.pod);
        if awaited {
            self.start_failed(None, None, turn);
        }
    }

    /// A full list was taken: what is not in it is gone, unless it may be younger than the list.
    pub(crate) fn keep_listed(&mut self, listed: impl Fn(&Uid) -> bool, turn: &mut Turn<'_>) {
        let confirm_by = turn.now + CONFIRM_WITHIN;
        let mut index = 0;
        while index < self.pods.len() {
            let tracked = &mut self.pods[index];
            if listed(tracked.uid()) {
                index += 1;
            } else if tracked.confirm_by.is_some() {
                tracked.confirm_by = Some(confirm_by);
                index += 1;
            } else {
                self.untrack(index, turn);
            }
        }
    }

    /// Ownership may have changed.
    pub(crate) fn own(&mut self, turn: &Turn<'_>) {
        self.keep = turn.keeps(&self.settings);
        for tracked in &mut self.pods {
            tracked.own(turn);
        }
    }
}

// === impl Tracked ===

impl Tracked {
    fn own(&mut self, turn: &Turn<'_>) {
        if turn.shared.ownership.owns(&self.pod.shard_key) {
            self.owned_since.get_or_insert(turn.now);
        } else {
            self.owned_since = None;
            self.retiring = None;
        }
    }

    pub(crate) fn send_delete(&mut self, why: Why, turn: &mut Turn<'_>) {
        self.going_since.get_or_insert(turn.now);
        self.delete = Some(Delete { sent: turn.now, unknown: None });
        if !matches!(why, Why::Failed | Why::Hung) {
            Function::stop_probe(self, turn);
        }
        turn.out.push(crate::event::Action::Delete {
            uid: self.pod.uid.clone(),
            resource_version: self.pod.resource_version.clone(),
            name: self.pod.name.clone(),
            why,
        });
    }
}
