//! The state that all images share, and what the rules of one event read and write.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use crate::config::Config;
use crate::event::{Action, OwnedShards, Rejection};
use crate::types::{ImageKey, RequestId, Time, Uid};

#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The time of the event that is being processed.
    pub(crate) now: Time,
    /// The actions that the event has caused so far.
    pub(crate) actions: Vec<Action>,
    /// While the pool settles an image (applies its rules until nothing changes): the earliest time
    /// that one of the image's rules waits for.
    pub(crate) wake_at: Cell<Option<Time>>,
    /// The rules of the image that the pool settles must run once more.
    pub(crate) unsettled: bool,
    pub(crate) config: Config,
    pub(crate) owned: OwnedShards,
    pub(crate) watch: Watch,
    /// Every call that waits or runs.
    pub(crate) calls: HashMap<RequestId, Call>,
    pub(crate) images: HashMap<Uid, ImageKey>,
    pub(crate) timers: BTreeSet<(Time, ImageKey)>,
    pub(crate) totals: Totals,
    pub(crate) quota: Option<Quota>,
    /// Images whose calls wait for room for one more pod (a place, see `capacity`), sorted by the
    /// start of the wait.
    pub(crate) wanting: BTreeSet<(Time, ImageKey)>,
    /// When the pool looks again for a pod to evict, after it has found none.
    pub(crate) evict_at: Option<Time>,
}

/// The counts of one image, or of all images together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Places (see `capacity`) that any runner has taken.
    pub(crate) pods: usize,
    /// The places among `pods` whose pod this runner has seen.
    pub(crate) seen: usize,
    /// The places among `seen` that will be free soon, because their pod ends.
    pub(crate) ending: usize,
    /// Pods that this runner owns.
    pub(crate) owned: usize,
    /// Replacements under way.
    pub(crate) replacing: usize,
}

/// The number of pods that a quota allows, derived from its last refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) pods: usize,
    pub(crate) until: Time,
    /// The quota has refused a pod although fewer than `pods` exist. The reason may be that a quota
    /// counts an ended pod for a moment longer. So only a second such refusal lowers `pods`.
    pub(crate) doubted: bool,
}

/// How current the view of the pods is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Nothing is known yet.
    #[default]
    Never,
    /// The watch delivers every change, but possibly late. The pool deletes no unused pod before
    /// `collect_from`.
    Current { collect_from: Time },
    /// Changes are being missed.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) image: ImageKey,
    pub(crate) deadline: Time,
    /// The pod that the call was granted. `None` while the call waits.
    pub(crate) pod: Option<Uid>,
    /// When the call began to wait, or was granted its pod.
    pub(crate) since: Time,
}

// === impl Totals ===

impl Totals {
    /// Replaces one image's part of the sum.
    pub(crate) fn change(&mut self, from: Self, to: Self) {
        self.pods = self.pods + to.pods - from.pods;
        self.seen = self.seen + to.seen - from.seen;
        self.ending = self.ending + to.ending - from.ending;
        self.owned = self.owned + to.owned - from.owned;
        self.replacing = self.replacing + to.replacing - from.replacing;
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
        self.unsettled = true;
    }

    pub(crate) fn reject(&mut self, id: RequestId, error: Rejection) {
        self.calls.remove(&id);
        self.act(Action::Reject { id, error });
    }

    /// Whether `at` has come. If not, the image is settled again at that moment.
    pub(crate) fn reached(&self, at: Time) -> bool {
        if at > self.now {
            self.wake_at.set(self.wake_at.get().into_iter().chain([at]).min());
        }
        at <= self.now
    }

    /// Whether the view is current enough to conclude that a pod is unused.
    pub(crate) fn may_collect(&self) -> bool {
        matches!(self.watch, Watch::Current { collect_from } if self.now >= collect_from)
    }

    pub(crate) fn may_create(&self) -> bool {
        self.watch != Watch::Never
    }
}
