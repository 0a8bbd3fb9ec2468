//! How many pods there may be of all images together: `--max-pods`, or what a quota allowed last.
//!
//! Every runner counts what it sees. Two of them may take the last place at once: what must never be
//! passed is for a quota to say. When no place is left, calls wait, and the pod that was
//! unused for longest is given notice: one of an image owned here, or else any other, which its
//! owner deletes then. Freed places go to the images whose calls have waited for longest.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::Why;
use crate::function::Function;
use crate::shared::Turn;
use crate::tracked::Tracked;
use crate::types::{ImageKey, Phase, Time, Uid};

/// How long what a quota allowed is believed: it may be raised at any time.
const QUOTA_FOR: Duration = Duration::from_mins(1);
/// While no pod can be spared.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The notice of an eviction: time enough for a watch and a push, since calls wait for its end.
const NOTICE: Duration = Duration::from_secs(3);
/// The `reclaim_after` by which a runner asks another one for the place of a pod of its: its owner gives notice then. To
/// all others it is a notice, to which a user objects.
const WISH: Time = Time::from_millis(0);
/// How long a pod is left alone that was needed after all.
const SPARED_FOR: Duration = Duration::from_secs(5);
/// How long another runner may take to delete its pod after the notice, besides its scan interval.
const OWNER_DELETES_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Capacity {
    quota: Option<Quota>,
    /// Images with calls that wait, and no place for a pod, with the time since when.
    pub(crate) wanting: BTreeSet<(Time, ImageKey)>,
    /// No pod could be spared: when to look again.
    pub(crate) look_at: Option<Time>,
}

/// What a quota allows.
#[derive(Debug)]
struct Quota {
    pods: usize,
    until: Time,
}

/// Why a pod is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// Nothing but that there are as many pods as there may be.
    Capacity,
    Other,
}

// === impl Config ===

impl Config {
    fn eviction_notice(&self) -> Duration {
        self.notice().min(NOTICE)
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// How many pods there may be of all images together.
    fn capacity(&self) -> Option<usize> {
        let quota = self.shared.capacity.quota.as_ref().filter(|quota| self.now < quota.until);
        let configured = self.shared.config.capacity.map(|pods| pods as usize);
        configured.into_iter().chain(quota.map(|quota| quota.pods)).min()
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
        others + self.held(turn) + ahead < capacity || turn.shared.broken(Breakage::PassCapacity)
    }

    /// Places that the image takes: its pods, unless they are stuck in termination, and creates under way.
    pub(crate) fn held(&self, turn: &Turn<'_>) -> usize {
        self.pods.iter().filter(|tracked| !tracked.is_stuck(turn)).count() + self.unseen_starts()
    }

    /// Those of them that will be free soon.
    pub(crate) fn ending(&self, turn: &Turn<'_>) -> usize {
        let ends = |tracked: &&Tracked| {
            let goes = !tracked.stays() || tracked.delete.is_some() || tracked.retiring == Some(Why::Evicted);
            goes && !tracked.is_stuck(turn)
        };
        self.pods.iter().filter(ends).count()
    }

    /// Calls wait, or do not any more, for nothing but a place.
    pub(crate) fn want_place(&mut self, wants: bool, turn: &mut Turn<'_>) {
        let since = wants.then(|| self.wants_since.unwrap_or(turn.now));
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

    /// A quota refused a pod: as many as there are is what it allows. Says whether there are any.
    pub(crate) fn learn_quota(&self, turn: &mut Turn<'_>) -> bool {
        let pods = turn.shared.totals.pods - self.part.pods + self.held(turn);
        turn.shared.capacity.quota = (pods > 0).then(|| Quota { pods, until: turn.now + QUOTA_FOR });
        pods > 0
    }

    /// The pod to be spared first, and what tells it from those of other images: the lesser, the sooner.
    fn spare_pod(&self, turn: &Turn<'_>) -> Option<(impl Ord + use<'_>, &Uid)> {
        if !self.queue.is_empty() || !self.may_collect(turn) {
            return None;
        }
        let lifetime = turn.shared.config.lifetime(self.settings.limits.ttl);
        let may_go = |tracked: &&Tracked| {
            tracked.lives()
                && tracked.calls.is_empty()
                && tracked.retiring.is_none()
                && tracked.push.is_none()
                && turn.now >= tracked.push_after
                && tracked.notice_ends.is_none_or(|ends| turn.now >= ends)
                && (tracked.owned_since.is_some() || tracked.pod.phase == Phase::Running)
        };
        self.pods
            .iter()
            .filter(may_go)
            .map(|tracked| {
                let pushed = tracked.pod.reclaim_after.map_or(Time::default(), |at| at - lifetime);
                let used = pushed.max(tracked.hearing.heard);
                let rank =
                    (tracked.owned_since.is_none(), tracked.kept, used, &self.image, &tracked.pod.name);
                (rank, tracked.uid())
            })
            .min()
    }

    /// Gives a pod notice.
    fn evict(&mut self, uid: &Uid, turn: &Turn<'_>) {
        if let Some(tracked) = self.pod_mut(uid) {
            tracked.begin_eviction(turn);
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

    /// The watch shows that another runner wants its place: its owner gives it notice, unless it is in use.
    pub(crate) fn heed_wish(&mut self, turn: &Turn<'_>) {
        let idle = self.calls.is_empty() && !self.kept && self.retiring.is_none();
        if self.pod.reclaim_after == Some(WISH) && idle && self.owned_since.is_some() {
            self.begin_eviction(turn);
        }
    }

    fn begin_eviction(&mut self, turn: &Turn<'_>) {
        (self.retiring, self.noticed) = (Some(Why::Evicted), None);
        self.notice_ends = Some(turn.now + turn.shared.config.eviction_notice());
    }

    /// The `reclaim_after` that says that its place is wanted.
    pub(crate) fn eviction_notice(&self, turn: &Turn<'_>) -> Time {
        let owned = self.owned_since.is_some();
        if owned { turn.now + turn.shared.config.eviction_notice() } else { WISH }
    }

    /// Not said yet.
    pub(crate) fn lacks_eviction_notice(&self, turn: &Turn<'_>) -> bool {
        let wished = self.pod.reclaim_after == Some(WISH);
        if self.owned_since.is_some() {
            wished || !self.lapses_within(turn.shared.config.eviction_notice(), turn.now)
        } else {
            !self.lapses_within(turn.shared.config.notice(), turn.now)
        }
    }

    /// Calls its eviction off when it is in use, here or elsewhere, or when its owner does not delete it.
    pub(crate) fn spare(&mut self, turn: &Turn<'_>) {
        let notice = turn.shared.config.notice();
        let objected = self.noticed.is_some() && self.push.is_none() && !self.lapses_within(notice, turn.now);
        let abandoned = self.owned_since.is_none()
            && self.notice_ends.is_some_and(|ends| {
                ends + turn.shared.config.scan_interval + OWNER_DELETES_WITHIN <= turn.now
            });
        if objected {
            self.noticed = None;
        }
        if objected || abandoned || !self.calls.is_empty() {
            self.retiring = None;
            self.notice_ends = Some(turn.now + SPARED_FOR);
        }
    }

    /// It was given notice to make a place, and the notice is over.
    pub(crate) fn is_evicted(&self, now: Time) -> bool {
        self.retiring == Some(Why::Evicted) && self.notice_ends.is_some_and(|ends| ends <= now)
    }

    /// Its `reclaim_after` is over.
    pub(crate) fn has_lapsed(&self, now: Time) -> bool {
        self.pod.reclaim_after.is_some_and(|reclaim_after| reclaim_after != WISH && now > reclaim_after)
    }

    /// When the eviction goes on.
    pub(crate) fn eviction_timer(&self, config: &Config, now: Time) -> Option<Time> {
        let ends = self.notice_ends.filter(|_| self.retiring == Some(Why::Evicted))?;
        if self.owned_since.is_none() {
            return Some(ends + config.scan_interval + OWNER_DELETES_WITHIN);
        }
        let lapse = self.pod.reclaim_after.map_or(ends, |at| at + Duration::from_millis(1));
        Some(ends.max(lapse)).filter(|&at| at > now)
    }
}

type Functions = HashMap<ImageKey, Function>;

/// Hands out what is free, and has pods make place for the images that wait. `settle` is to be called for
/// every image that is touched.
pub(crate) fn make_places(
    functions: &mut Functions,
    turn: &mut Turn<'_>,
    settle: impl Fn(&mut Functions, &ImageKey, &mut Turn<'_>),
) {
    let capacity = &mut turn.shared.capacity;
    capacity.look_at.take_if(|at| *at <= turn.now);
    if capacity.wanting.is_empty() {
        capacity.look_at = None;
        return;
    }
    for (_, image) in capacity.wanting.clone() {
        if turn.capacity().is_some_and(|capacity| turn.shared.totals.pods >= capacity) {
            break;
        }
        settle(functions, &image, turn);
    }
    for _ in 0..turn.shared.capacity.wanting.len() {
        if turn.shared.capacity.look_at.is_some() || !lacks_places(turn) {
            break;
        }
        let spare =
            functions.values().filter_map(|function| function.spare_pod(turn).map(|spare| (spare, function)));
        let found = spare.min_by(|(one, _), (other, _)| one.0.cmp(&other.0));
        let Some((image, uid)) = found.map(|((_, uid), function)| (function.image.clone(), uid.clone()))
        else {
            turn.shared.capacity.look_at = Some(turn.now + LOOK_AGAIN);
            break;
        };
        if let Some(function) = functions.get_mut(&image) {
            function.evict(&uid, turn);
        }
        settle(functions, &image, turn);
    }
}

/// Fewer pods end than places are wanted.
fn lacks_places(turn: &Turn<'_>) -> bool {
    let Some(capacity) = turn.capacity() else { return false };
    let totals = &turn.shared.totals;
    let wanted = turn.shared.capacity.wanting.len() + totals.pods;
    wanted > capacity + totals.ending && !turn.shared.broken(Breakage::NeverEvict)
}
