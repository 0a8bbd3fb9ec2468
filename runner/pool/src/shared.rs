//! What all images have in common, and the turn: one event being worked on at one moment.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::breakage::Breakage;
use crate::capacity::Capacity;
use crate::config::Config;
use crate::event::{Action, Ownership, Rejection};
use crate::queue::Ticket;
use crate::types::{ImageKey, RequestId, Time, Uid};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) ownership: Ownership,
    pub(crate) watch: Watch,
    /// Every call that waits or runs.
    pub(crate) calls: HashMap<RequestId, Call>,
    /// Calls on pods that are no longer known. A pod can come back: a list may be older than the pod.
    pub(crate) orphans: HashMap<Uid, Vec<(RequestId, Time)>>,
    pub(crate) images: HashMap<Uid, ImageKey>,
    pub(crate) timers: BTreeSet<(Time, ImageKey)>,
    pub(crate) totals: Totals,
    pub(crate) capacity: Capacity,
    #[cfg(test)]
    pub(crate) broken: Option<Breakage>,
}

/// What one image has, or all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Places that are taken, by whomever.
    pub(crate) pods: usize,
    /// Those of them whose pods are there.
    pub(crate) seen: usize,
    /// Those of them that will be free soon.
    pub(crate) ending: usize,
    /// Pods that this runner owns.
    pub(crate) owned: usize,
    /// Replacements under way.
    pub(crate) replacing: usize,
}

/// How much the view of the pods can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Nothing is known yet.
    Never,
    /// Complete, but late. Nothing is collected before the given moment.
    Current { collect_from: Time },
    /// Changes are being missed.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) image: ImageKey,
    pub(crate) place: Place,
    /// How long it has been there.
    pub(crate) since: Time,
}

#[derive(Debug)]
pub(crate) enum Place {
    Queue(Ticket),
    Pod(Uid),
}

pub(crate) struct Turn<'a> {
    pub(crate) now: Time,
    pub(crate) shared: &'a mut Shared,
    pub(crate) out: &'a mut Vec<Action>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            ownership: Ownership::All,
            watch: Watch::Never,
            calls: HashMap::new(),
            orphans: HashMap::new(),
            images: HashMap::new(),
            timers: BTreeSet::new(),
            totals: Totals::default(),
            capacity: Capacity::default(),
            #[cfg(test)]
            broken: None,
        }
    }

    /// A call on a pod that is no longer known is over.
    pub(crate) fn forget_orphan(&mut self, id: RequestId, place: &Place) {
        let Place::Pod(uid) = place else { return };
        let Some(calls) = self.orphans.get_mut(uid) else { return };
        calls.retain(|&(other, _)| other != id);
        if calls.is_empty() {
            self.orphans.remove(uid);
        }
    }

    #[cfg(test)]
    pub(crate) fn broken(&self, rule: Breakage) -> bool {
        self.broken == Some(rule)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the tests' version looks")]
    pub(crate) const fn broken(&self, _rule: Breakage) -> bool {
        false
    }
}

// === impl Totals ===

impl Totals {
    /// One image's part has changed.
    pub(crate) fn change(&mut self, from: Self, to: Self) {
        self.pods = self.pods + to.pods - from.pods;
        self.seen = self.seen + to.seen - from.seen;
        self.ending = self.ending + to.ending - from.ending;
        self.owned = self.owned + to.owned - from.owned;
        self.replacing = self.replacing + to.replacing - from.replacing;
    }

    /// Whether one more pod may be replaced: a new template replaces all there are, a few at a time.
    pub(crate) fn may_replace(&self) -> bool {
        self.replacing < (self.owned / MOST_REPLACED).max(1)
    }
}

/// One of so many owned pods is replaced at a time.
const MOST_REPLACED: usize = 20;

// === impl Turn ===

impl Turn<'_> {
    pub(crate) fn reject(&mut self, id: RequestId, error: Rejection) {
        self.shared.calls.remove(&id);
        self.out.push(Action::Reject { id, error });
    }

    pub(crate) fn skew(&self) -> Duration {
        self.shared.config.skew
    }

    /// Whether the view is good enough to judge a pod unused.
    pub(crate) fn may_collect(&self) -> bool {
        match self.shared.watch {
            Watch::Current { collect_from } => {
                self.now >= collect_from || self.shared.broken(Breakage::NoWaitAfterGap)
            }
            Watch::Never | Watch::Lost => false,
        }
    }

    /// A request was not answered: the others may not reach the API server either, so this is a gap for all images.
    pub(crate) fn doubt(&mut self) {
        let from = self.now + self.shared.config.scan_interval;
        if let Watch::Current { collect_from } = &mut self.shared.watch {
            *collect_from = from.max(*collect_from);
        }
    }

    pub(crate) fn may_create(&self) -> bool {
        self.shared.watch != Watch::Never || self.shared.broken(Breakage::CreateBeforeSync)
    }
}
