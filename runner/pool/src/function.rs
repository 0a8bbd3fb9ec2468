//! One image: its pods, the creates under way, the calls that wait, and the rules that run after
//! every event. `lib.rs` explains the terms.
//!
//! Events only record what happened. [`Function::settle`] then applies every rule to the whole
//! image, so that no rule depends on which event came last. A rule that waits for a time calls
//! [`Shared::reached`], which sets the timer of the image. The rules of an image keep no other
//! timers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::ImageSettings;
use crate::event::Action;
use crate::queue::Queue;
use crate::shared::{Shared, Totals};
use crate::start::{Backoff, Start};
use crate::tracked::{Health, Tracked};
use crate::types::{ImageKey, PodName, ShardKey, Time, Uid};

/// The rules need two or three passes. If a bug causes more than this, the next event continues.
const MOST_PASSES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) image: ImageKey,
    /// The shard key of the last request. New pods get this key.
    pub(crate) shard_key: ShardKey,
    pub(crate) settings: ImageSettings,
    /// Sorted by slot.
    pub(crate) pods: Vec<Tracked>,
    pub(crate) starts: Vec<Start>,
    pub(crate) queue: Queue,
    /// The pause after failed starts.
    pub(crate) backoff: Option<Backoff>,
    /// The pause between starts of pods for `min_pods`. It does not delay pods that calls need.
    pub(crate) top_up_pause: Option<Backoff>,
    /// The shard key of the warm-up under way.
    pub(crate) warm: Option<ShardKey>,
    /// Number of pods that this runner keeps; 0 unless it owns the image.
    pub(crate) min_pods: usize,
    pub(crate) replacement: Option<Replacement>,
    /// Where the round robin continues.
    pub(crate) next_pick: usize,
    /// A pod that had served is gone, and no pod has been ready since.
    pub(crate) lost: bool,
    /// Start of the current period without a ready pod.
    pub(crate) unready_since: Option<Time>,
    pub(crate) scan_at: Time,
    /// No unused pod of the image is deleted before this time (see `collect`).
    pub(crate) collect_from: Time,
    /// Number of consecutive creates that a quota refused while calls waited.
    pub(crate) quota_refusals: u32,
    /// When the image began to wait for a place for one more pod (see `capacity`).
    pub(crate) wants_since: Option<Time>,
    /// This image's part of the totals.
    pub(crate) part: Totals,
    /// The image's entry in the timers. It may be earlier than needed.
    pub(crate) timer: Option<Time>,
}

/// A replacement under way.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) old: Uid,
    pub(crate) new: PodName,
}

/// The pods that this runner knows and the calls that want one.
#[derive(Debug, Default)]
pub struct Pool {
    /// Sorted by image, so that the same events always cause the same actions.
    pub(crate) functions: BTreeMap<ImageKey, Function>,
    pub(crate) shared: Shared,
}

/// Counts of one image, for metrics and `/shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionStats {
    /// The image.
    pub image: ImageKey,
    /// Whether this runner owns it. A runner that neither owns the image nor uses its pods never
    /// probes them, so they count as starting.
    pub owned: bool,
    /// Pods that serve.
    pub ready: usize,
    /// Pods that have not served yet and may become ready, including creates under way.
    pub starting: usize,
    /// Pods that have served but are not ready now.
    pub silent: usize,
    /// Pods in termination.
    pub terminating: usize,
    /// Calls granted and not finished.
    pub in_flight: usize,
    /// Calls waiting.
    pub waiting: usize,
}

/// One pod, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStats {
    /// The object's identity.
    pub uid: Uid,
    /// `ready`: it serves. `starting`: it is not ready now, but may become ready. `terminating`: it is
    /// in termination, or it failed and is about to be deleted.
    pub state: &'static str,
    /// Calls granted and not finished.
    pub calls: usize,
}

// === impl Function ===

impl Function {
    pub(crate) fn new(image: ImageKey, shard_key: ShardKey, shared: &Shared) -> Self {
        let scan_at = shared.now + shared.config.scan_interval;
        let mut function = Self { image, shard_key, scan_at, ..Self::default() };
        function.configure(shared);
        function
    }

    /// The configuration changed.
    pub(crate) fn configure(&mut self, shared: &Shared) {
        self.settings = shared.config.settings(&self.image);
        self.min_pods = self.min_pods_here(shared);
        self.scan_at = self.scan_at.min(shared.now + shared.config.scan_interval);
    }

    /// Applies the rules until the state is stable. Returns whether the pool must keep the image.
    pub(crate) fn settle(&mut self, shared: &mut Shared) -> bool {
        for _ in 0..MOST_PASSES {
            (shared.wake_at, shared.unsettled) = (Cell::default(), false);
            self.apply_rules(shared);
            if !shared.unsettled {
                break;
            }
        }
        let remembers = !self.is_idle();
        self.set_timer(shared.wake_at.get().filter(|_| remembers), shared);
        remembers
    }

    fn apply_rules(&mut self, shared: &mut Shared) {
        self.expire_starts(shared);
        self.expire_answers(shared);
        self.expire_probes(shared);
        self.check_pods(shared);
        self.expire_waiters(shared);
        self.grant_waiters(shared);
        self.scan(shared);
        self.retire(shared);
        self.push_pods(shared);
        self.scale(shared);
        self.probe_pods(shared);
        self.update_totals(shared);
    }

    /// Whether the pool may forget the image.
    fn is_idle(&self) -> bool {
        self.pods.is_empty()
            && self.starts.is_empty()
            && self.queue.is_empty()
            && self.backoff.is_none()
            && self.warm.is_none()
            && self.min_pods == 0
    }

    fn set_timer(&mut self, next: Option<Time>, shared: &mut Shared) {
        if self.timer.is_some_and(|timer| next.is_some_and(|next| timer <= next)) {
            return;
        }
        let timers = &mut shared.timers;
        if let Some(timer) = std::mem::replace(&mut self.timer, next) {
            timers.remove(&(timer, self.image.clone()));
        }
        timers.extend(next.map(|next| (next, self.image.clone())));
    }

    pub(crate) fn find(&self, uid: &Uid) -> Option<usize> {
        self.pods.iter().position(|tracked| tracked.pod.uid == *uid)
    }

    pub(crate) fn any_ready(&self) -> bool {
        self.pods.iter().any(Tracked::ready)
    }

    /// Number of pods that count towards `max_pods`, including creates under way.
    pub(crate) fn count(&self, shared: &Shared) -> usize {
        self.pods.iter().filter(|tracked| tracked.stays() && !tracked.is_silent(shared)).count()
            + self.unseen_starts()
    }

    /// Number of pods that are not ready but may soon serve, for the first time or again. Includes
    /// creates under way.
    pub(crate) fn starting(&self, shared: &Shared) -> usize {
        let starting = |tracked: &&Tracked| !tracked.ready() && tracked.may_serve(shared);
        self.pods.iter().filter(starting).count() + self.unseen_starts()
    }

    /// Number of creates under way whose pod is not among the known pods yet.
    pub(crate) fn unseen_starts(&self) -> usize {
        self.starts.iter().filter(|start| start.shown.is_none()).count()
    }

    /// Stops a probe that is no longer needed.
    pub(crate) fn stop_probe(tracked: &mut Tracked, shared: &mut Shared) {
        if matches!(tracked.health, Health::Probing { .. } | Health::Overdue) {
            tracked.health = Health::Unknown;
            let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
            shared.act(Action::Probe { uid, name, on: false });
        }
    }

    pub(crate) fn stats(&self, shared: &Shared) -> FunctionStats {
        let count = |is: fn(&Tracked) -> bool| self.pods.iter().filter(|tracked| is(tracked)).count();
        FunctionStats {
            image: self.image.clone(),
            owned: shared.owned.owns(&self.shard_key),
            ready: count(Tracked::ready),
            starting: count(|tracked| tracked.lives() && !tracked.served) + self.unseen_starts(),
            silent: count(|tracked| tracked.lives() && tracked.served && !tracked.ready()),
            terminating: count(|tracked| !tracked.stays()),
            in_flight: self.pods.iter().map(|tracked| tracked.calls.len()).sum(),
            waiting: self.queue.len(),
        }
    }
}

impl Tracked {
    fn stats(&self) -> PodStats {
        let state = match (self.ready(), self.lives()) {
            (true, _) => "ready",
            (false, true) => "starting",
            (false, false) => "terminating",
        };
        PodStats { uid: self.pod.uid.clone(), state, calls: self.calls.len() }
    }
}

// === impl Pool ===

impl Pool {
    /// The pods of the image `key`, and the pods with the shard key `key`; at most `limit`.
    pub fn pods(&self, key: &str, limit: usize) -> Vec<PodStats> {
        let pods = self.functions.values().flat_map(|function| &function.pods);
        let selected = pods.filter(|tracked| {
            let pod = &tracked.pod;
            pod.name.image.as_str() == key || pod.shard_key.as_str() == key
        });
        selected.take(limit).map(Tracked::stats).collect()
    }

    /// Returns the function of an image, and creates it if needed. The caller must settle it
    /// afterwards.
    pub(crate) fn entry(&mut self, image: &ImageKey, shard_key: &ShardKey) -> &mut Function {
        let new = || Function::new(image.clone(), shard_key.clone(), &self.shared);
        self.functions.entry(image.clone()).or_insert_with(new)
    }

    /// Changes the function of an image, if it is known, and settles it.
    pub(crate) fn change(&mut self, image: &ImageKey, change: impl FnOnce(&mut Function, &mut Shared)) {
        let Some(function) = self.functions.get_mut(image) else { return };
        change(function, &mut self.shared);
        if !function.settle(&mut self.shared) {
            self.functions.remove(image);
        }
    }

    /// Like `change`, for the function of a pod; `change` gets the pod's index. An event about an
    /// unknown pod is ignored.
    pub(crate) fn change_pod(&mut self, uid: &Uid, change: impl FnOnce(&mut Function, usize, &mut Shared)) {
        let Some(image) = self.shared.images.get(uid).cloned() else { return };
        self.change(&image, |function, shared| {
            if let Some(index) = function.find(uid) {
                change(function, index, shared);
            }
        });
    }

    /// Changes and settles all functions. Adds the images of which this runner keeps `min_pods`.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut Function, &mut Shared)) {
        let kept_images = Arc::clone(&self.shared.config.kept_images);
        for (image, shard_key) in kept_images.iter() {
            if self.shared.owned.owns(shard_key) {
                self.entry(image, shard_key);
            }
        }
        self.functions.retain(|_, function| {
            change(function, &mut self.shared);
            function.settle(&mut self.shared)
        });
    }
}
