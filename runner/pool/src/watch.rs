//! Tracks the pods that the watch shows. The watch is late and may miss changes. A list may be
//! older than the known pods. The rules rely only on the order of the states of one pod.

use crate::function::Function;
use crate::shared::Shared;
use crate::tracked::{Health, Tracked};
use crate::types::{Phase, Pod};

// === impl Function ===

impl Function {
    /// The watch shows a pod, new or changed.
    pub(crate) fn observe(&mut self, pod: Pod, shared: &mut Shared) {
        // The pod may be one that is being created.
        self.starts.retain(|start| !(start.answered && start.name == pod.name));
        if let Some(start) = self.starts.iter_mut().find(|start| start.name == pod.name) {
            start.shown.get_or_insert_with(|| pod.uid.clone());
        }
        let index = self.find(&pod.uid).unwrap_or_else(|| self.track(pod.clone(), shared));
        let may_collect = self.may_collect(shared) && self.queue.is_empty();
        let tracked = &mut self.pods[index];
        let awaited = tracked.awaited();
        if tracked.pod.resource_version != pod.resource_version {
            // After a conflict, retry now that the new version is known.
            tracked.push_after = tracked.push_after.min(shared.now);
            tracked.delete_after = tracked.delete_after.min(shared.now);
            // The change is the result of the push under way, or the reason why this push will
            // fail.
            tracked.push = None;
        }
        if pod.phase == Phase::Running {
            tracked.running_since.get_or_insert(shared.now);
            if let Health::Probing { since, given_up, .. } = &mut tracked.health
                && *given_up
            {
                // The pod is no longer pending. Its time to become ready starts now.
                (*since, *given_up) = (shared.now, false);
            }
        }
        if pod.reclaim_after < tracked.pod.reclaim_after && pod.reclaim_after != tracked.pushed {
            // Another runner that considers itself the owner has given notice: it set a nearer
            // `reclaim_after`. This runner delays its own delete, so that other runners have time
            // to push the pod (to write a later `reclaim_after`).
            tracked.delete_after = shared.now + shared.config.eviction_notice();
        }
        let place_wanted = pod.place_wanted.is_some() && pod.place_wanted != tracked.pod.place_wanted;
        tracked.pod = pod;
        tracked.own(shared);
        let idle = tracked.may_be_evicted(shared) && !tracked.kept && tracked.owned_since.is_some();
        if place_wanted && idle && may_collect {
            tracked.begin_eviction(shared);
        }
        if tracked.pod.terminating_since.is_some() {
            tracked.ending_since.get_or_insert(shared.now);
            Self::stop_probe(tracked, shared);
            if awaited {
                self.start_failed(None, None, shared);
            }
        } else if let Phase::Failed(reason) = &tracked.pod.phase {
            let reason = reason.clone();
            self.fail(index, reason, shared);
        }
    }

    /// Starts to track a pod, with the calls that this runner may still have on it. Returns its
    /// index.
    fn track(&mut self, pod: Pod, shared: &mut Shared) -> usize {
        shared.images.insert(pod.uid.clone(), self.image.clone());
        let at = self.pods.partition_point(|other| (&other.pod.name, &other.pod.uid) < (&pod.name, &pod.uid));
        // An outdated list without this pod may have caused `untrack`. Calls of this runner may
        // still run in the pod.
        let calls = shared.calls.iter();
        let calls = calls.filter(|(_, call)| call.pod.as_ref() == Some(&pod.uid));
        let calls: Vec<_> = calls.map(|(id, call)| (*id, call.deadline)).collect();
        self.pods.insert(at, Tracked { served: !calls.is_empty(), calls, pod, ..Tracked::default() });
        at
    }

    /// The pod is gone, or must be treated as gone.
    pub(crate) fn untrack(&mut self, index: usize, shared: &mut Shared) {
        let mut tracked = self.pods.remove(index);
        self.lost |= tracked.served;
        let awaited = tracked.awaited();
        Self::stop_probe(&mut tracked, shared);
        shared.images.remove(&tracked.pod.uid);
        // While a pod is tracked, the pod is counted instead of its start. If the API server has
        // not answered the create yet, the start is counted again from now on.
        let shown = self.starts.iter_mut().map(|start| &mut start.shown);
        shown.for_each(|shown| drop(shown.take_if(|uid| *uid == tracked.pod.uid)));
        if awaited {
            self.start_failed(None, None, shared);
        }
    }

    /// Ownership may have changed.
    pub(crate) fn own(&mut self, shared: &Shared) {
        self.min_pods = self.min_pods_here(shared);
        self.pods.iter_mut().for_each(|tracked| tracked.own(shared));
    }
}

// === impl Tracked ===

impl Tracked {
    fn own(&mut self, shared: &Shared) {
        if shared.owned.owns(&self.pod.shard_key) {
            self.owned_since.get_or_insert(shared.now);
        } else {
            (self.owned_since, self.retiring) = (None, None);
        }
    }
}
