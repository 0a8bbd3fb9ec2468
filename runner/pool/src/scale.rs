//! When one more pod is started, and under which name.
//!
//! The load of a pod is its calls in flight and its share of the calls that wait; a pod on its way has the share of
//! those that it was started for. One more is started when the least loaded pod has `--max-waitlist-length` of them.
//! Nothing is booked on a particular pod: the shares follow from the totals, so a caller who leaves takes his share
//! along.

use crate::breakage::Breakage;
use crate::capacity::NotCreated;
use crate::event::{Action, Ownership};
use crate::function::Function;
use crate::shared::Turn;
use crate::start::Start;
use crate::tracked::Tracked;
use crate::types::{PodName, ShardKey, Time};

/// Pods that one warm-up starts at most, one after the other: registry, quota or node may be away when the runner starts.
const WARM_TRIES: u32 = 5;

/// A warm-up that has not succeeded yet.
#[derive(Clone, Debug)]
pub(crate) struct Warm {
    /// Under which it was asked for.
    key: ShardKey,
    /// Pods that were started for it.
    tries: u32,
}

/// Whether a slot can take a new pod.
enum Slot {
    Free(PodName),
    /// By a pod that lives, or one whose end cannot be foretold.
    Held,
    /// By a terminating pod, which is passed from then on.
    HeldUntil(Time),
}

// === impl Warm ===

impl Warm {
    pub(crate) fn new(key: ShardKey) -> Self {
        Self { key, tries: 0 }
    }
}

// === impl Function ===

impl Function {
    /// Starts what the waiting calls and a warm-up ask for, and what is to be kept.
    pub(crate) fn scale(&mut self, turn: &mut Turn<'_>) {
        self.name_free_at = None;
        if self.queue.is_empty() {
            self.refusals = 0;
        }
        let before = self.starts.len();
        let mut failed = None;
        while failed.is_none() && self.waiters_want_pod(turn) {
            failed = self.create(turn).err();
        }
        self.want_place(failed == Some(NotCreated::NoPlace), self.starts.len() > before, turn);
        self.warm_up(turn);
        self.top_up(turn);
    }

    /// Starts the pod that a warm-up asks for, or forgets about it where another runner owns the image and when it was
    /// tried often enough.
    fn warm_up(&mut self, turn: &mut Turn<'_>) {
        let Some(Warm { key, tries }) = self.warm.clone() else { return };
        if self.warms(turn) {
            if self.count(turn.now) > 0 || self.is_paused(turn.now) {
                return;
            }
            if tries >= WARM_TRIES {
                self.warm = None;
                return;
            }
            self.shard_key = key.clone();
            match self.create(turn) {
                Ok(_) => self.warm = Some(Warm { key, tries: tries + 1 }),
                // No pod that was in use makes place for it.
                Err(NotCreated::NoPlace) => self.warm = None,
                Err(NotCreated::Other) => {}
            }
        } else if turn.may_create() && !matches!(turn.shared.ownership, Ownership::None) {
            self.warm = None;
        }
    }

    /// A warm-up was asked for, and it is for this runner to see to it.
    pub(crate) fn warms(&self, turn: &Turn<'_>) -> bool {
        let owns =
            |key: &ShardKey| turn.shared.ownership.owns(key) || turn.shared.broken(Breakage::WarmUnowned);
        self.warm.as_ref().is_some_and(|warm| owns(&warm.key))
    }

    /// Every ready pod has so many calls that the next one should find one more pod.
    pub(crate) fn is_crowded(&self, turn: &Turn<'_>) -> bool {
        let waitlist = self.waitlist();
        self.serving(turn).all(|tracked| tracked.load() >= waitlist)
    }

    /// A call was granted although all pods were crowded: starts one more pod, unless those that are on their way
    /// will take the excess.
    pub(crate) fn scale_beyond(&mut self, turn: &mut Turn<'_>) {
        if self.excess(turn) > self.starting(turn.now) * self.waitlist() {
            // Without a place, the pods that there are serve it.
            let _ = self.create(turn);
        }
    }

    fn waiters_want_pod(&self, turn: &Turn<'_>) -> bool {
        let waitlist = self.waitlist();
        let room = |tracked: &Tracked| tracked.room(waitlist, turn.now).saturating_sub(tracked.load());
        let room: usize = self.serving(turn).map(room).sum();
        let waiting = self.queue.len();
        waiting > room && waiting - room + self.excess(turn) > self.starting(turn.now) * waitlist
    }

    /// Calls in flight that would rather have been on another pod.
    fn excess(&self, turn: &Turn<'_>) -> usize {
        let waitlist = self.waitlist();
        self.serving(turn).map(|tracked| tracked.load().saturating_sub(waitlist)).sum()
    }

    fn waitlist(&self) -> usize {
        self.settings.limits.waitlist as usize
    }

    /// Creates a pod in the lowest free slot below the limit, if it may. While all pods that there are end, have failed
    /// or do not answer, the surge slot will do as well.
    pub(crate) fn create(&mut self, turn: &mut Turn<'_>) -> Result<PodName, NotCreated> {
        let limit = self.settings.limits.max_pods;
        if self.count(turn.now) >= limit as usize {
            return Err(if self.is_evicting() { NotCreated::NoPlace } else { NotCreated::Other });
        }
        let answers = |tracked: &Tracked| tracked.lives() && !tracked.is_silent(turn.now);
        let surge = !turn.shared.broken(Breakage::WaitForNames)
            && self.starts.is_empty()
            && !self.pods.iter().any(answers);
        self.create_in(0..limit.saturating_add(surge.into()), turn)
    }

    /// Creates a pod in the first of `slots` that is free.
    pub(crate) fn create_in(
        &mut self,
        slots: impl Iterator<Item = u32>,
        turn: &mut Turn<'_>,
    ) -> Result<PodName, NotCreated> {
        if !turn.may_create() || self.is_paused(turn.now) {
            return Err(NotCreated::Other);
        }
        let name = self.free_name(slots, turn).ok_or(NotCreated::Other)?;
        if !self.has_place(turn) {
            return Err(NotCreated::NoPlace);
        }
        self.starts.push(Start::new(name.clone(), turn.now));
        turn.out.push(Action::Create {
            name: name.clone(),
            shard_key: self.shard_key.clone(),
            origin: self.settings.template.clone(),
            reclaim_after: self.reclaim_at(self.queue.last_deadline(), turn),
        });
        Ok(name)
    }

    fn free_name(&mut self, slots: impl Iterator<Item = u32>, turn: &Turn<'_>) -> Option<PodName> {
        if turn.shared.broken(Breakage::NameByCount) {
            let slot = u32::try_from(self.count(turn.now)).ok()?;
            return Some(PodName { image: self.image.clone(), slot, past: None });
        }
        for slot in slots {
            match self.slot(slot, turn) {
                Slot::Free(name) => return Some(name),
                Slot::Held => {}
                Slot::HeldUntil(time) => {
                    self.name_free_at = Some(self.name_free_at.map_or(time, |other| other.min(time)));
                }
            }
        }
        None
    }

    fn slot(&self, slot: u32, turn: &Turn<'_>) -> Slot {
        if self.starts.iter().any(|start| start.name.slot == slot && start.unseen()) {
            return Slot::Held;
        }
        let holders = || self.pods.iter().filter(|tracked| tracked.pod.name.slot == slot);
        let mut free_at = None;
        for holder in holders() {
            let Some(since) = holder.pod.terminating_since else { return Slot::Held };
            free_at = free_at.max(Some(since + turn.shared.config.stuck_after));
        }
        if let Some(time) = free_at.filter(|&time| time > turn.now) {
            return Slot::HeldUntil(time);
        }
        // Every holder is stuck. There is one candidate more than holders, so one of them is free.
        let pasts = std::iter::once(None).chain(holders().map(|holder| Some(holder.uid().clone())));
        let taken = |past: &Option<_>| holders().any(|holder: &Tracked| holder.pod.name.past == *past);
        pasts
            .map(|past| (taken(&past), past))
            .find_map(|(taken, past)| (!taken).then_some(past))
            .map_or(Slot::Held, |past| Slot::Free(PodName { image: self.image.clone(), slot, past }))
    }
}
