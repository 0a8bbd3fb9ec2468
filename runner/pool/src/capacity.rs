//! How many pods there may be of all images together: `--max-pods`, or what a quota allowed last.
//!
//! Every runner counts what it sees. Two of them may take the last place at once: what must never be
//! passed is for a quota to say. When no place is left, calls wait, and the pod that was unused for
//! longest is evicted: its owner gives a short notice, in which it takes no new calls. A runner that
//! owns no idle pod asks the owner of another one, by a mark in the pod. Freed places go to the images
//! that have waited for longest.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::{Rejection, Why};
use crate::function::Function;
use crate::shared::{Totals, Turn};
use crate::tracked::Tracked;
use crate::types::{ImageKey, Phase, Pod, Reason, Time, Uid};

/// How long what a quota allowed is believed: it may be raised at any time.
const QUOTA_FOR: Duration = Duration::from_mins(1);
/// After so many refusals in a row the image's pod is too large for what others leave of the quota.
const MOST_REFUSALS: u32 = 5;
/// While no pod can be evicted.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// While there are only too many.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// The notice of an eviction: time enough for a watch and a push, since calls wait for its end.
const NOTICE: Duration = Duration::from_secs(3);
/// How long after its notice the eviction of a pod is given up that could not be deleted.
const DELETED_WITHIN: Duration = Duration::from_secs(5);
/// How long a pod is left alone that was needed after all.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// How long a pod that goes, or that another runner was asked for, is expected to leave a place.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long after that the other runner is not asked for the same pod again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Capacity {
    quota: Option<Quota>,
    /// Images with calls that wait, and no place for a pod, with the time since when.
    pub(crate) wanting: BTreeSet<(Time, ImageKey)>,
    /// No pod could be evicted: when to look again.
    pub(crate) look_at: Option<Time>,
}

/// What a quota allows.
#[derive(Debug)]
struct Quota {
    pods: usize,
    until: Time,
    /// It refused fewer. The place of a pod that has just gone is free a moment later.
    doubted: bool,
}

/// Why a pod is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCreated {
    /// For nothing but that there are as many pods as there may be.
    NoPlace,
    Other,
}

/// The end of a pod whose place is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// When its notice ends.
    ends: Time,
    /// Its `reclaim_after` before.
    reclaim_after: Option<Time>,
}

// === impl Config ===

impl Config {
    /// How far ahead the eviction of a pod is announced.
    pub(crate) fn eviction_notice(&self) -> Duration {
        self.notice().min(NOTICE)
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// How many pods there may be of all images together.
    fn capacity(&self) -> Option<usize> {
        let quota = self.shared.capacity.quota.as_ref().filter(|quota| self.now < quota.until);
        // Pods that are there prove that the quota allows them.
        let quota = quota.map(|quota| quota.pods.max(self.shared.totals.seen));
        let configured = self.shared.config.capacity.map(|pods| pods as usize);
        configured.into_iter().chain(quota).min()
    }
}

// === impl Function ===

impl Function {
    /// Whether one more pod of the image would be within the capacity, after those that other images
    /// have waited for longer.
    pub(crate) fn has_place(&self, turn: &Turn<'_>) -> bool {
        let Some(capacity) = turn.capacity() else { return true };
        let wanting = &turn.shared.capacity.wanting;
        let ahead = match self.wants_since {
            Some(since) => wanting.range(..(since, self.image.clone())).count(),
            None => wanting.len(),
        };
        let others = turn.shared.totals.pods - self.part.pods;
        others + self.places(turn).pods + ahead < capacity || turn.shared.broken(Breakage::PassCapacity)
    }

    /// Its part in the totals, as far as places go. Pods that are stuck in termination take none.
    pub(crate) fn places(&self, turn: &Turn<'_>) -> Totals {
        let there = || self.pods.iter().filter(|tracked| !tracked.is_stuck(turn));
        let seen = there().count();
        let ending = there().filter(|tracked| tracked.leaves_soon(turn.now)).count();
        Totals { pods: seen + self.unseen_starts(), seen, ending, ..Totals::default() }
    }

    /// Calls wait, or do not any more, for nothing but a place. Who was `given` one goes to the end of the line.
    pub(crate) fn want_place(&mut self, wants: bool, given: bool, turn: &mut Turn<'_>) {
        let since = wants.then(|| self.wants_since.filter(|_| !given).unwrap_or(turn.now));
        if since == self.wants_since {
            return;
        }
        let wanting = &mut turn.shared.capacity.wanting;
        if let Some(since) = self.wants_since {
            wanting.remove(&(since, self.image.clone()));
        }
        if let Some(since) = since {
            wanting.insert((since, self.image.clone()));
        }
        self.wants_since = since;
    }

    /// A pod of it makes place for another image's.
    pub(crate) fn is_evicting(&self) -> bool {
        self.pods.iter().any(|tracked| tracked.retiring == Some(Why::Evicted))
    }

    /// A quota refused a pod. As many as there are is what it allows, unless that is none, or the image asks for more
    /// than others leave of it.
    pub(crate) fn over_quota(&mut self, reason: Reason, alone: bool, turn: &mut Turn<'_>) {
        self.refusals += 1;
        let pods = turn.shared.totals.pods - self.part.pods + self.places(turn).pods;
        let quota = turn.shared.capacity.quota.take_if(|quota| turn.now < quota.until);
        let fewer = quota.as_ref().is_some_and(|quota| pods < quota.pods && !quota.doubted);
        let until = turn.now + QUOTA_FOR;
        let allowed = quota.filter(|_| fewer).map_or(pods, |quota| quota.pods);
        if pods > 0 {
            turn.shared.capacity.quota = Some(Quota { pods: allowed, until, doubted: fewer });
        }
        if fewer && self.refusals < MOST_REFUSALS {
            self.start_failed(None, None, turn);
        } else if pods == 0 || self.refusals >= MOST_REFUSALS {
            // What it does not have room for may be no matter to the pods of other images.
            turn.shared.capacity.quota = None;
            // Pods that other runners made a moment ago may not have been seen yet.
            let error = (alone || self.refusals > 1).then_some(Rejection::PodFailed { reason });
            self.start_failed(error, None, turn);
        }
    }

    /// The pod to be evicted first, and what tells it from those of other images: the lesser, the sooner.
    fn eviction_candidate(&self, owned_only: bool, turn: &Turn<'_>) -> Option<(impl Ord + use<'_>, &Uid)> {
        if !self.queue.is_empty() || !self.may_collect(turn) {
            return None;
        }
        let lifetime = turn.shared.config.lifetime(self.settings.limits.ttl);
        self.pods
            .iter()
            .filter(|tracked| tracked.owned_since.is_some() || !owned_only)
            .filter(|tracked| tracked.may_be_evicted(turn) && !self.is_in_replacement(tracked))
            .map(|tracked| {
                let pushed = tracked.pod.reclaim_after.map_or(Time::default(), |at| at - lifetime);
                let used = pushed.max(tracked.hearing.heard);
                let rank =
                    (tracked.owned_since.is_none(), tracked.kept, used, &self.image, &tracked.pod.name);
                (rank, tracked.uid())
            })
            .min()
    }

    /// Evicts a pod, or asks its owner to.
    fn evict(&mut self, uid: &Uid, turn: &mut Turn<'_>) {
        let Some(tracked) = self.pod_mut(uid) else { return };
        if tracked.owned_since.is_some() {
            tracked.begin_eviction(turn);
        } else {
            tracked.asked_for_place = Some(turn.now);
            tracked.send_request_for_place(turn);
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// It should be gone for long, and nobody knows when it will be.
    pub(crate) fn is_stuck(&self, turn: &Turn<'_>) -> bool {
        let stuck_after = turn.shared.config.stuck_after;
        self.pod.terminating_since.is_some_and(|since| since + stuck_after <= turn.now)
    }

    /// Its place is expected to be free in a moment.
    fn leaves_soon(&self, now: Time) -> bool {
        let recent = |at: Option<Time>| at.is_some_and(|at| now < at + GONE_WITHIN);
        let goes = !self.stays() || self.delete.is_some();
        self.retiring == Some(Why::Evicted)
            || (goes && recent(self.going_since))
            || recent(self.asked_for_place)
    }

    pub(crate) fn may_be_evicted(&self, turn: &Turn<'_>) -> bool {
        let asked = self.asked_for_place.is_some_and(|at| turn.now < at + ASK_AGAIN);
        let may_ask = self.pod.phase == Phase::Running && !asked;
        self.lives()
            && self.calls.is_empty()
            && self.retiring.is_none()
            && self.push.is_none()
            && turn.now >= self.push_after.max(self.left_alone_until)
            && self.pod.reclaim_after.is_some()
            && (self.owned_since.is_some() || may_ask)
    }

    /// Another runner asks for its place: its owner evicts it, unless it is in use.
    pub(crate) fn is_asked_for(&self, seen: &Pod) -> bool {
        seen.place_wanted.is_some() && seen.place_wanted != self.pod.place_wanted
    }

    pub(crate) fn begin_eviction(&mut self, turn: &Turn<'_>) {
        let ends = turn.now + turn.shared.config.eviction_notice();
        self.eviction = Some(Eviction { ends, reclaim_after: self.pod.reclaim_after });
        (self.retiring, self.noticed) = (Some(Why::Evicted), None);
    }

    /// Calls its eviction off when it is in use, here or elsewhere, or could not be deleted.
    pub(crate) fn reconsider_eviction(&mut self, may_collect: bool, turn: &Turn<'_>) {
        let Some(eviction) = self.eviction.filter(|_| self.retiring == Some(Why::Evicted)) else { return };
        let told = self.noticed.is_some() && self.push.is_none();
        let reclaim_after = self.pod.reclaim_after;
        let moved = reclaim_after != eviction.reclaim_after && reclaim_after != self.asked;
        let objected = told && moved && !self.lapses_within(turn.shared.config.notice(), turn.now);
        let failed = self.delete.is_none() && eviction.ends + DELETED_WITHIN <= turn.now;
        if objected {
            self.noticed = None;
        }
        if objected || failed || !may_collect || !self.calls.is_empty() {
            (self.retiring, self.eviction) = (None, None);
            self.left_alone_until = turn.now + LEFT_ALONE;
        }
    }

    /// It was evicted, and the notice is over. A notice of somebody else who thinks to own it is not ours.
    pub(crate) fn is_evicted(&self, now: Time) -> bool {
        self.retiring == Some(Why::Evicted)
            && self.eviction.is_some_and(|eviction| eviction.ends <= now)
            && self.pod.reclaim_after == self.asked
    }

    /// When its place, or its eviction, is looked at again.
    pub(crate) fn place_timer(&self, config: &Config, now: Time) -> Option<Time> {
        let stuck = self.pod.terminating_since.map(|since| since + config.stuck_after);
        let gone = self.going_since.map(|at| at + GONE_WITHIN);
        let asked = self.asked_for_place.map(|at| at + GONE_WITHIN);
        let eviction = self.eviction.filter(|_| self.retiring == Some(Why::Evicted));
        let lapse = self.pod.reclaim_after.map(|at| at + Duration::from_millis(1));
        let deletes =
            eviction.map(|eviction| eviction.ends.max(self.delete_after).max(lapse.unwrap_or_default()));
        let fails = eviction.map(|eviction| eviction.ends + DELETED_WITHIN);
        [stuck, gone, asked, deletes, fails].into_iter().flatten().filter(|&at| at > now).min()
    }
}

type Functions = HashMap<ImageKey, Function>;

/// Hands out the places that are free, and has pods evicted for the images that wait, and where there are more than
/// there may be. `settle` is to be called for every image that is touched.
pub(crate) fn make_places(
    functions: &mut Functions,
    turn: &mut Turn<'_>,
    settle: impl Fn(&mut Functions, &ImageKey, &mut Turn<'_>),
) {
    turn.shared.capacity.look_at.take_if(|at| *at <= turn.now);
    for _ in 0..turn.shared.capacity.wanting.len() {
        let first = turn.shared.capacity.wanting.first().map(|(_, image)| image.clone());
        let full = turn.capacity().is_some_and(|capacity| turn.shared.totals.pods >= capacity);
        let Some(image) = first.filter(|_| !full) else { break };
        settle(functions, &image, turn);
    }
    for _ in 0..turn.shared.capacity.wanting.len().max(1) {
        if !lacks_places(turn) {
            turn.shared.capacity.look_at = None;
            return;
        }
        if turn.shared.capacity.look_at.is_some() {
            return;
        }
        // Only for calls are other runners asked.
        let owned_only = turn.shared.capacity.wanting.is_empty();
        let candidates = functions.values().filter_map(|function| {
            function.eviction_candidate(owned_only, turn).map(|candidate| (candidate, &function.image))
        });
        let found = candidates.min_by(|(one, _), (other, _)| one.0.cmp(&other.0));
        let Some((image, uid)) = found.map(|((_, uid), image)| (image.clone(), uid.clone())) else { break };
        if let Some(function) = functions.get_mut(&image) {
            function.evict(&uid, turn);
        }
        settle(functions, &image, turn);
    }
    if lacks_places(turn) {
        let pause = if turn.shared.capacity.wanting.is_empty() { LOOK_SELDOM } else { LOOK_AGAIN };
        turn.shared.capacity.look_at.get_or_insert(turn.now + pause);
    }
}

/// Fewer pods end than places are wanted, or than there are too many.
fn lacks_places(turn: &Turn<'_>) -> bool {
    let Some(capacity) = turn.capacity() else { return false };
    let totals = &turn.shared.totals;
    let wanted = turn.shared.capacity.wanting.len() + totals.pods;
    wanted > capacity + totals.ending && !turn.shared.broken(Breakage::NeverEvict)
}
