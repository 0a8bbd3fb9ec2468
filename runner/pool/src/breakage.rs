//! Rules that can be broken one at a time, so that a test can show that the property test would notice. Each variant
//! is asked about at the one line that holds its rule; outside this crate's tests the answer is a constant `false`.
//!
//! The first group is the races of the function runner that this project replaces, as near as this design can come to
//! them; the second is what this design adds and must hold by itself.

use crate::event::Why;
use crate::function::Function;
use crate::shared::Turn;
use crate::types::{Origin, PodName};

/// A rule not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "set only by tests"))]
pub(crate) enum Breakage {
    /// Race 1: the next name is the number of pods, and whoever holds it is deleted.
    NameByCount,
    /// Race 2: when a pod fails, those who waited for it are handed over to nobody.
    LoseWaiters,
    /// Race 2: a call that is handed over from the queue is not counted.
    UncountedHandover,
    /// Race 3: a cancelled call stays counted.
    CancelKeepsLoad,
    /// Race 4: a waiting call does not notice its deadline. (The missing pod that was used as if it were there cannot
    /// be written down here: a grant is made from a pod.)
    IgnoreDeadline,
    /// Race 5: a readiness report is taken by the first starting pod, not by its own.
    ReadyFirstStarting,
    /// Race 6: work begins before the existing pods are known. (There, two tasks changed one map; here, one owner of
    /// the state sees events one by one, so what is left of the race is the order.)
    CreateBeforeSync,
    /// Race 7: only pods of the configured version are adopted, the others are neither used nor deleted. (An index out
    /// of bounds and a list that aborts the start have no counterpart: a list is a value here.)
    AdoptOnlyCurrent,
    /// Race 8: a create that meets an existing pod counts as a pod on its way, even when that pod is terminating.
    ExistsIsSuccess,

    /// A pod close to its `reclaim_after` is used without pushing first.
    NoPushFirst,
    /// Calls in flight do not push.
    NoPushInFlight,
    /// Collection goes on right after a gap in the watch.
    NoWaitAfterGap,
    /// A replaced pod is deleted without notice, as soon as this runner does not use it.
    RetireAtOnce,
    /// The answer to a push is believed although the watch has moved on.
    BelieveLatePush,
    /// Pods are collected by runners that do not own them.
    CollectUnowned,
    /// Pods of a kept image are started and kept by runners that do not own it.
    KeepUnowned,
    /// Nobody starts the pods that are to be kept.
    KeepUnstarted,
    /// Kept pods lapse as any other.
    KeepUnprotected,
    /// Kept pods are not deleted, but not pushed either.
    KeepUnpushed,
    /// Of the pods of a kept image, the one to lapse next is kept, which is another one after each push.
    KeepByTurns,
    /// A newer time protects a pod although its part is the same.
    UnrelatedTimes,
    /// A warm-up is seen to by runners that do not own the image.
    WarmUnowned,
    /// A pod that does not answer counts towards the limit until it is deleted.
    CountSilent,
    /// Pods with calls are never asked whether they answer.
    NeverAsk,
    /// While all pods end or do not answer, the next one waits for a name.
    WaitForNames,
    /// Pods are created although there are as many as there may be.
    PassCapacity,
    /// No pod makes place for another one.
    NeverEvict,
    /// When a pod is missing from a list, its calls are forgotten, although the list may be older than the pod.
    ForgetVanishedCalls,
}

// === impl Turn ===

impl Turn<'_> {
    /// Whether a pod of the one origin is outdated beside the other.
    pub(crate) fn yields(&self, old: &Origin, new: &Origin) -> bool {
        let resolved = |origin: &Origin| origin.content.as_ref().and_then(|content| content.resolved);
        let any_newer = || old.config_time > new.config_time || resolved(old) > resolved(new);
        old.yields_to(new) && !(self.shared.broken(Breakage::UnrelatedTimes) && any_newer())
    }
}

// === impl Function ===

impl Function {
    /// The former runner's way with a name that is taken.
    pub(crate) fn delete_holder(&mut self, name: &PodName, turn: &mut Turn<'_>) {
        if let Some(holder) = self.pods.iter_mut().find(|tracked| tracked.pod.name == *name) {
            holder.send_delete(Why::Failed, turn);
        }
    }
}
