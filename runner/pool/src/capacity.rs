//! The limit for the pods of all images together (the capacity): `--max-pods`, or the number that a
//! quota last allowed. A place is the room for one pod within this limit.
//!
//! Every runner counts the pods that it sees. Two runners may take the last place at once, so only
//! a quota is a hard limit. When no place is left, calls wait, and the pod that was unused for
//! longest is evicted. Its owner gives a short notice (see `lib.rs`), and sends the pod no more
//! calls. A runner that owns no idle pod writes an annotation on an idle pod of another owner. The
//! annotation asks that owner to evict the pod. Free places go to the images that have waited for
//! longest.

use std::time::Duration;

use crate::event::{DeleteReason, OwnedShards, Rejection};
use crate::function::{Function, Pool};
use crate::shared::{Quota, Shared, Totals};
use crate::tracked::Tracked;
use crate::types::{Phase, Reason, Time, Uid};

/// How long the pool remembers that a quota refused a pod. The quota may be raised at any time.
const QUOTA_FOR: Duration = Duration::from_mins(1);
/// After this many refusals in a row, the image's pod is assumed to be too large for the rest of
/// the quota.
const MOST_REFUSALS: u32 = 5;
/// How often to look for a pod to evict while calls wait.
const EVICT_PAUSE: Duration = Duration::from_millis(100);
/// How often to look for a pod to evict while no call waits, but there are too many pods.
const EVICT_SURPLUS_PAUSE: Duration = Duration::from_secs(1);
/// The owner gives up an eviction if it could not delete the pod this long after the end of the
/// notice.
const DELETED_WITHIN: Duration = Duration::from_secs(5);
/// How long a pod is not evicted again after its eviction was cancelled.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// The pool expects that a terminating pod frees its place within this time. It expects the same of
/// a pod that another runner was asked to evict.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// The pause before another runner is asked again to evict the same pod.
const ASK_AGAIN: Duration = Duration::from_secs(30);

// === impl Shared ===

impl Shared {
    /// The limit for the pods of all images together.
    fn capacity(&self) -> Option<usize> {
        let quota = self.quota.filter(|quota| self.now < quota.until);
        // The quota allows at least the pods that exist.
        let quota = quota.map(|quota| quota.pods.max(self.totals.seen));
        let configured = self.config.capacity.map(|pods| pods as usize);
        configured.into_iter().chain(quota).min()
    }

    /// Whether the existing pods and one pod for each waiting image exceed the capacity, even when
    /// the ending pods are gone.
    fn lacks_places(&self) -> bool {
        let wanted = self.wanting.len() + self.totals.pods;
        self.capacity().is_some_and(|capacity| wanted > capacity + self.totals.ending)
    }
}

// === impl Function ===

impl Function {
    /// Whether the capacity has room for one more pod of the image. Images that have waited longer
    /// come first.
    pub(crate) fn has_place(&self, shared: &Shared) -> bool {
        let Some(capacity) = shared.capacity() else { return true };
        let wanting = &shared.wanting;
        let ahead = match self.wants_since {
            Some(since) => wanting.range(..(since, self.image.clone())).count(),
            None => wanting.len(),
        };
        self.all_pods(shared) + ahead < capacity
    }

    /// Places that all images take. This image's part is counted anew, because its entry in the
    /// totals may be outdated.
    fn all_pods(&self, shared: &Shared) -> usize {
        shared.totals.pods - self.part.pods + self.totals(shared).pods
    }

    /// This image's part of the totals. Pods that are stuck in termination take no place.
    fn totals(&self, shared: &Shared) -> Totals {
        let mut totals = Totals { replacing: self.replacement.is_some().into(), ..Totals::default() };
        for tracked in &self.pods {
            totals.owned += usize::from(tracked.stays() && tracked.owned_since.is_some());
            if !tracked.is_stuck(shared) {
                totals.seen += 1;
                totals.ending += usize::from(tracked.ends_soon(shared));
            }
        }
        totals.pods = totals.seen + self.unseen_starts();
        totals
    }

    pub(crate) fn update_totals(&mut self, shared: &mut Shared) {
        let part = self.totals(shared);
        shared.totals.change(self.part, part);
        self.part = part;
    }

    /// Records whether calls wait only for a place. An image that was just `given` a place goes to
    /// the end of the images' queue.
    pub(crate) fn want_place(&mut self, wants: bool, given: bool, shared: &mut Shared) {
        let since = wants.then(|| self.wants_since.filter(|_| !given).unwrap_or(shared.now));
        let wanting = &mut shared.wanting;
        if let Some(since) = std::mem::replace(&mut self.wants_since, since) {
            wanting.remove(&(since, self.image.clone()));
        }
        wanting.extend(since.map(|since| (since, self.image.clone())));
    }

    /// A quota refused a pod. The pool then limits the pods to their current number. Exceptions:
    /// there are no pods, or the image's pod is too large for the rest of the quota.
    pub(crate) fn over_quota(&mut self, reason: Reason, shared: &mut Shared) {
        self.quota_refusals += 1;
        let pods = self.all_pods(shared);
        let quota = shared.quota.take_if(|quota| shared.now < quota.until);
        let fewer = quota.is_some_and(|quota| pods < quota.pods && !quota.doubted);
        let until = shared.now + QUOTA_FOR;
        let allowed = quota.filter(|_| fewer).map_or(pods, |quota| quota.pods);
        if pods > 0 {
            shared.quota = Some(Quota { pods: allowed, until, doubted: fewer });
        }
        if fewer && self.quota_refusals < MOST_REFUSALS {
            self.start_failed(None, None, shared);
        } else if pods == 0 || self.quota_refusals >= MOST_REFUSALS {
            // The quota may have room for the pods of other images.
            shared.quota = None;
            // This runner may not have seen yet the pods that other runners created a moment ago.
            // So it rejects no calls at the first refusal, unless it is the only runner.
            let is_only_runner = matches!(shared.owned, OwnedShards::All);
            let rejects = is_only_runner || self.quota_refusals > 1;
            self.start_failed(rejects.then_some(Rejection::PodFailed { reason }), None, shared);
        }
    }

    /// Returns the image's pod that should be evicted first, with its rank among the candidates of
    /// all images. The lowest rank is evicted first.
    fn eviction_candidate(&self, owned_only: bool, shared: &Shared) -> Option<(impl Ord + use<>, Uid)> {
        if !self.queue.is_empty() || !self.may_collect(shared) {
            return None;
        }
        let lifetime = shared.config.lifetime(self.settings.limits.ttl);
        let candidates = self.pods.iter().filter(|tracked| {
            (tracked.owned_since.is_some() || !owned_only)
                && tracked.may_be_evicted(shared)
                && !self.is_in_replacement(tracked)
        });
        let ranked = candidates.map(|tracked| {
            let pushed = tracked.pod.reclaim_after.map_or(Time::default(), |at| at - lifetime);
            let used = pushed.max(tracked.liveness.last_sign);
            let rank = (tracked.owned_since.is_none(), tracked.kept, used, tracked.pod.name.clone());
            (rank, tracked.pod.uid.clone())
        });
        ranked.min()
    }

    /// Evicts a pod, or asks its owner to.
    fn evict(&mut self, index: usize, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if tracked.owned_since.is_some() {
            tracked.begin_eviction(shared);
        } else if let Some(unchanged) = tracked.pod.reclaim_after {
            tracked.asked_for_place = Some(shared.now);
            tracked.send_push(unchanged, Some(shared.now), shared);
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// Whether the pod's place is expected to be free soon.
    fn ends_soon(&self, shared: &Shared) -> bool {
        let recent = |at: Option<Time>| at.is_some_and(|at| !shared.reached(at + GONE_WITHIN));
        let ends = !self.stays() || self.delete.is_some();
        self.evicting() || (ends && recent(self.ending_since)) || recent(self.asked_for_place)
    }

    pub(crate) fn may_be_evicted(&self, shared: &Shared) -> bool {
        let asked = self.asked_for_place.is_some_and(|at| shared.now < at + ASK_AGAIN);
        let may_ask = self.pod.phase == Phase::Running && !asked;
        self.lives()
            && self.calls.is_empty()
            && self.retiring.is_none()
            && self.push.is_none()
            && shared.now >= self.push_after.max(self.left_alone_until)
            && self.pod.reclaim_after.is_some()
            && (self.owned_since.is_some() || may_ask)
    }

    pub(crate) fn begin_eviction(&mut self, shared: &Shared) {
        let ends = shared.now + shared.config.eviction_notice();
        self.eviction = (ends, self.pod.reclaim_after);
        (self.retiring, self.noticed) = (Some(DeleteReason::Evicted), None);
    }

    /// Cancels the pod's eviction if this or another runner uses the pod, if the pod could not be
    /// deleted in time, or if this runner's view may be outdated.
    pub(crate) fn reconsider_eviction(&mut self, may_collect: bool, shared: &Shared) {
        if !self.evicting() {
            return;
        }
        let (ends, before) = self.eviction;
        let has_notice = self.noticed.is_some() && self.push.is_none();
        let reclaim_after = self.pod.reclaim_after;
        let moved = reclaim_after != before && reclaim_after != self.pushed;
        let objected = has_notice && moved && !self.expires_within(shared.config.notice(), shared.now);
        let failed = self.delete.is_none() && shared.reached(ends + DELETED_WITHIN);
        if objected {
            self.noticed = None;
        }
        if objected || failed || !may_collect || !self.calls.is_empty() {
            self.retiring = None;
            self.left_alone_until = shared.now + LEFT_ALONE;
        }
    }
}

// === impl Pool ===

impl Pool {
    /// Gives the free places to waiting images. Evicts pods for images that still wait, and pods
    /// above the capacity.
    pub(crate) fn hand_out_places(&mut self) {
        self.shared.evict_at.take_if(|at| *at <= self.shared.now);
        for _ in 0..self.shared.wanting.len() {
            let full = self.shared.capacity().is_some_and(|capacity| self.shared.totals.pods >= capacity);
            let first = self.shared.wanting.first().filter(|_| !full);
            let Some((_, image)) = first.cloned() else { break };
            self.change(&image, |_, _| {});
        }
        for _ in 0..self.shared.wanting.len().max(1) {
            if !self.shared.lacks_places() {
                self.shared.evict_at = None;
                return;
            }
            if self.shared.evict_at.is_some() {
                return;
            }
            // Other runners are asked only if calls wait.
            let owned_only = self.shared.wanting.is_empty();
            let functions = self.functions.values();
            let candidates =
                functions.filter_map(|function| function.eviction_candidate(owned_only, &self.shared));
            let Some((_, uid)) = candidates.min() else { break };
            self.change_pod(&uid, Function::evict);
        }
        if self.shared.lacks_places() {
            let waiting = !self.shared.wanting.is_empty();
            let pause = if waiting { EVICT_PAUSE } else { EVICT_SURPLUS_PAUSE };
            self.shared.evict_at.get_or_insert(self.shared.now + pause);
        }
    }
}
