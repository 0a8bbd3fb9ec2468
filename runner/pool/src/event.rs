//! The input and output of the pool: the whole contract between the pure rules and the driver.
//!
//! The driver must send the pool:
//! - exactly one [`Event::Finished`] or [`Event::Cancel`] for every grant;
//! - exactly one answer for every [`Action::Create`], [`Action::Delete`] and [`Action::Push`]
//!   (`Unknown` or `Unreachable` if the driver gave up), and one [`Event::Checked`] for every
//!   [`Action::Check`];
//! - never an older state of a pod after a newer one;
//! - [`Event::Seen`] with the written pod, before the answer `Ok` to the create or push;
//! - [`Event::WatchLost`] whenever the watch may have missed a change.

use std::time::Duration;

use crate::config::Config;
use crate::types::{
    ImageKey, Lookup, Pod, PodName, PodRecipe, Reason, RequestId, ResourceVersion, ShardKey, Time, Uid,
};

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A call wants a pod. The pool answers with one `Grant` or one `Reject`, unless the call is
    /// cancelled first.
    Request {
        /// An id that the driver has never used before.
        id: RequestId,
        /// What to run.
        image: ImageKey,
        /// The runner writes this key into a pod that it creates for the call.
        shard_key: ShardKey,
        /// A call that still waits at this time is rejected.
        deadline: Time,
    },
    /// The caller of a waiting or granted call is gone. The pool ignores this after a `Reject` or
    /// `Finished`.
    Cancel(RequestId),
    /// A granted call is over.
    Finished {
        /// The call.
        id: RequestId,
        /// What the end of the call reveals about the pod.
        verdict: Verdict,
    },
    /// A pod was added or changed.
    Seen(Pod),
    /// A pod was deleted.
    Gone(Uid),
    /// The full list of pods. It replaces the pool's list: a pod that is not in the list is gone.
    Synced(Vec<Pod>),
    /// The watch was interrupted. The next `Synced` ends the gap.
    WatchLost,
    /// The answer to `Create`.
    Created {
        /// The name in `Create`.
        name: PodName,
        /// The answer.
        result: Creation,
    },
    /// The answer to `Delete`.
    Deleted {
        /// The uid in `Delete`.
        uid: Uid,
        /// The answer.
        result: WriteOutcome,
    },
    /// The answer to `Push`.
    Pushed {
        /// The uid in `Push`.
        uid: Uid,
        /// The answer.
        result: WriteOutcome,
    },
    /// This runner's own probe succeeded: the wrapper-server in the pod serves.
    Ready(Uid),
    /// The answer to `Check`.
    Checked {
        /// The uid in `Check`.
        uid: Uid,
        /// The number in `Check`.
        number: u64,
        /// Whether the wrapper-server in the pod answered in time, whatever the answer.
        answered: bool,
    },
    /// The pod cannot start or has died.
    Failed {
        /// The pod.
        uid: Uid,
        /// Why.
        reason: Reason,
    },
    /// Flags or files changed. A pool starts with the configuration given to
    /// [`Pool::new`](crate::Pool::new).
    Configure(Config),
    /// The [`PodRecipe`] of this image changed. [`Config::overrides`] returns the new one.
    RecipeChanged(ImageKey),
    /// The set of runners changed. A pool starts with [`OwnedShards::All`], so a runner with peers
    /// sends this before the first `Synced`, and again at every change.
    Own(OwnedShards),
    /// Start one pod of the image unless one exists. Only the owner starts it. The pool keeps the
    /// request while it does not know the pods, or while its shards are [`OwnedShards::None`]. It
    /// drops the request if another runner owns the image, or after five failed starts in a row.
    Warm {
        /// What to warm up.
        image: ImageKey,
        /// Decides which runner owns the image. The owner writes this key into the pod.
        shard_key: ShardKey,
    },
    /// The time that [`Pool::next_timer`](crate::Pool::next_timer) returned has come. An early tick
    /// is harmless.
    Tick,
}

/// What the end of a call reveals about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod answered, even if the function failed.
    Served,
    /// The pod could not be reached, or it died during the call. It gets no call until a probe
    /// succeeds.
    Broken,
    /// The pod refused the call because all runners together already use its whole capacity. This
    /// runner sends it fewer calls for a while.
    Full,
    /// The pod sent nothing back, and the driver closed the connection. The pod does not count
    /// towards the image's maximum number of pods until a probe succeeds.
    Silent,
    /// The deadline passed. The function or the pod may be the cause.
    Late {
        /// A hash of the call's package: equal for equal packages.
        package: u64,
    },
}

/// The answer to a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Created.
    Ok(Uid),
    /// A pod that the runners manage holds the name. The watch will show it.
    Exists,
    /// Not allowed or not possible: for example admission, an invalid image, or a foreign pod with
    /// this name.
    Refused(Reason),
    /// A quota is used up.
    OverQuota(Reason),
    /// An error. The pod may exist or not.
    Unknown,
    /// No answer. The pod may exist or not.
    Unreachable,
}

/// The answer to a delete or a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Accepted: the pod terminates (delete) or is updated (push).
    Ok,
    /// The pod has another resource version.
    Conflict,
    /// The pod does not exist. For a push also: the pod is terminating.
    Gone,
    /// An error. The write may have taken effect or not.
    Unknown,
    /// No answer.
    Unreachable,
}

/// The shards that this runner owns, according to its own view of its peers.
#[derive(Clone, Debug, Default)]
pub enum OwnedShards {
    /// Everything: there is only one runner.
    #[default]
    All,
    /// Nothing: this runner is not among the peers, or does not know them yet.
    None,
    /// The keys for which the function returns true. Its results must not change between two
    /// [`Event::Own`].
    Of(Lookup<ShardKey, bool>),
}

// === impl OwnedShards ===

impl OwnedShards {
    /// Whether this runner owns the key.
    pub fn owns(&self, shard_key: &ShardKey) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Of(owns) => owns.find(shard_key),
        }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the call on this pod.
    Grant {
        /// The call.
        id: RequestId,
        /// The pod.
        uid: Uid,
    },
    /// Answer the call with an error.
    Reject {
        /// The call.
        id: RequestId,
        /// The error.
        error: Rejection,
    },
    /// Create a pod; answer with `Created`.
    Create {
        /// The name. If several runners create this name, only one create succeeds.
        name: PodName,
        /// A value to write into the pod.
        shard_key: ShardKey,
        /// The recipe to create the pod from. It is also written into the pod.
        recipe: PodRecipe,
        /// A value to write into the pod.
        reclaim_after: Time,
    },
    /// Delete a pod if uid and resource version still match; answer with `Deleted`.
    Delete {
        /// The pod.
        uid: Uid,
        /// The version that the decision was based on.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
        /// For the log and the metrics.
        reason: DeleteReason,
    },
    /// Write `reclaim_after` if uid and resource version still match; answer with `Pushed`. The new
    /// value may be earlier than the old one.
    Push {
        /// The pod.
        uid: Uid,
        /// The version that the decision was based on.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
        /// The new `reclaim_after`.
        until: Time,
        /// The new [`place_wanted`](Pod::place_wanted), if that changes.
        place_wanted: Option<Time>,
    },
    /// Check whether a pod that has served still answers. Use the connection that its calls use.
    /// Answer with `Checked`.
    Check {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
        /// The number of this check, which `Checked` must return.
        number: u64,
        /// The time that the pod has to answer.
        within: Duration,
    },
    /// The pod does not answer: close its connection, so that its calls move to other pods.
    Disconnect {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
    },
    /// Start or stop probing the pod. A probe ends when the driver reports `Ready` or `Failed`. The
    /// driver may also stop it when the pod is gone or terminates.
    Probe {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
        /// Start or stop.
        on: bool,
    },
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeleteReason {
    /// The pod failed to start, died, or was not ready in time.
    Failed,
    /// Several calls in a row on the pod reached their deadlines (see `liveness`). The pod's other
    /// calls may still finish.
    Hung,
    /// The pod is unused, and its `reclaim_after` has passed.
    Expired,
    /// A pod with the configured recipe ([`PodRecipe`]) has replaced this one.
    Replaced,
    /// The image has more pods than allowed.
    Surplus,
    /// Another image needs the pod's place (see `capacity`).
    Evicted,
}

/// Why a call gets no pod. The texts are deterministic: no names, uids or times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// `RESOURCE_EXHAUSTED`: the image's queue is full.
    #[error(
        "{limit} calls already wait for a pod of this function: retry later, or raise --max-queue-per-function \
         or --max-parallel-pods-per-function"
    )]
    QueueFull {
        /// `--max-queue-per-function`, or the image's own value.
        limit: u32,
    },
    /// `DEADLINE_EXCEEDED`: the call's deadline passed in the queue.
    #[error(
        "the deadline passed while the call waited for a pod of this function{}: allow a longer deadline, warm the \
         function up, or raise --max-parallel-pods-per-function",
        in_parentheses(waiting.as_ref())
    )]
    DeadlineExceeded {
        /// What a pod that starts waits for, if known.
        waiting: Option<Reason>,
    },
    /// `DEADLINE_EXCEEDED`: the call's deadline passed while no place was free (see `capacity`).
    #[error(
        "the deadline passed while the call waited for a place among the function pods: raise the limit \
         that is used up (--max-pods or the ResourceQuota of the function namespace), or allow a longer deadline"
    )]
    NoRoom,
    /// The pod could not be created or could not start.
    #[error("the function's pod failed to start: {reason}")]
    PodFailed {
        /// What happened and what to do about it.
        reason: Reason,
    },
    /// `DEADLINE_EXCEEDED`: no pod was ready in time.
    #[error(
        "no pod of this function was ready within {}s{}: check that its image starts in that time, or raise \
         --pod-ready-timeout",
        timeout.as_secs_f64(), in_parentheses(waiting.as_ref())
    )]
    NotReady {
        /// `--pod-ready-timeout`.
        timeout: Duration,
        /// What the last pod waited for, if known.
        waiting: Option<Reason>,
    },
}

fn in_parentheses(waiting: Option<&Reason>) -> String {
    waiting.map_or_else(String::new, |reason| format!(" ({reason})"))
}
