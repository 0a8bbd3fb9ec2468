//! What goes into the pool and what comes out of it: the whole contract between the pure rules and the driver.
//!
//! The driver owes the pool: exactly one [`Event::Finished`] or [`Event::Cancel`] for every grant, exactly one answer
//! for every [`Action::Create`], [`Action::Delete`] and [`Action::Push`] (`Unknown` or `Unreachable` when it gave up),
//! one [`Event::Checked`] for every [`Action::Check`], and [`Event::WatchLost`] whenever it may have missed a change.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::types::{ImageKey, Origin, Pod, PodName, Reason, RequestId, ResourceVersion, ShardKey, Time, Uid};

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A call wants a pod. Answered by one `Grant` or one `Reject`, unless it is cancelled before.
    Request {
        /// Never used before.
        id: RequestId,
        /// What to run.
        image: ImageKey,
        /// Written into a pod that is created for it.
        shard_key: ShardKey,
        /// Past it the call is rejected.
        deadline: Time,
    },
    /// The caller of a waiting or granted call is gone. After a `Reject` or `Finished` it is ignored.
    Cancel {
        /// The call.
        id: RequestId,
    },
    /// A granted call is over.
    Finished {
        /// The call.
        id: RequestId,
        /// What it showed about the pod.
        verdict: Verdict,
    },
    /// Watch: a pod was added or changed.
    Seen(Pod),
    /// Watch: a pod was deleted.
    Gone {
        /// The pod.
        uid: Uid,
    },
    /// Watch: the full list. Replaces everything known; pods missing from it are gone.
    Synced(Vec<Pod>),
    /// Watch: a gap begins, which the next `Synced` ends.
    WatchLost,
    /// The answer to `Create`.
    Created {
        /// As asked.
        name: PodName,
        /// What came of it.
        result: Creation,
    },
    /// The answer to `Delete`.
    Deleted {
        /// As asked.
        uid: Uid,
        /// What came of it.
        result: Deletion,
    },
    /// The answer to `Push`.
    Pushed {
        /// As asked.
        uid: Uid,
        /// What came of it.
        result: Pushing,
    },
    /// Our own probe: the pod's wrapper serves.
    Ready {
        /// The pod.
        uid: Uid,
    },
    /// The answer to `Check`.
    Checked {
        /// As asked.
        uid: Uid,
        /// As asked.
        number: u64,
        /// Whether the pod's wrapper answered in time, whatever it said.
        answered: bool,
    },
    /// The pod cannot start or has died.
    Failed {
        /// The pod.
        uid: Uid,
        /// Why.
        reason: Reason,
    },
    /// Flags or files changed. Pools start with the configuration given to [`Pool::new`](crate::Pool::new).
    Configure(Config),
    /// What pods of this image are made from changed, as [`Config::overrides`] says from now on.
    Remade {
        /// The image.
        image: ImageKey,
    },
    /// The set of runners changed. Pools start with [`Ownership::All`]: a runner with peers says so before the first
    /// `Synced`, and again only when something changed.
    Own(Ownership),
    /// Start one pod of the image unless there is one, in a few tries. For its owner alone: the wish is remembered until
    /// the pods are known and the ownership is other than [`Ownership::None`], and is dropped where another runner owns
    /// the image.
    Warm {
        /// What to warm up.
        image: ImageKey,
        /// Decides who owns it. Written into the pod.
        shard_key: ShardKey,
    },
    /// A timer went off: [`Pool::next_timer`](crate::Pool::next_timer) has come. Early ones are harmless.
    Tick,
}

/// What a call showed about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod answered, be it with the function's failure.
    Served,
    /// The pod could not be reached or died in the call: it is not handed out again until probed ready.
    Broken,
    /// The pod refused the call: it has as many as it takes, of several runners together. It gets fewer from here for a
    /// while.
    Full,
    /// Nothing came back from the pod, and its connection was given up. It does not count towards the limit
    /// until probed ready.
    Silent,
    /// The deadline passed, which may be the function's doing or the pod's.
    Late {
        /// Stands for the package of the call: equal for equal packages.
        package: u64,
    },
}

/// The answer to a create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the usual answer, and gone as soon as it is read")]
pub enum Creation {
    /// Created.
    Ok(Pod),
    /// A pod of ours holds the name. The watch will show it.
    Exists,
    /// Not allowed or not possible: admission, an invalid image, a name held by a foreign pod.
    Refused(Reason),
    /// A quota is used up.
    OverQuota(Reason),
    /// An error that does not say whether the pod exists.
    Unknown,
    /// No answer: the pod may exist or not.
    Unreachable,
}

/// The answer to a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Accepted: the pod terminates.
    Ok,
    /// The pod is not in the state that was judged.
    Conflict,
    /// There is no such pod.
    NotFound,
    /// An error that does not say whether the pod terminates.
    Unknown,
    /// No answer: the pod may terminate or not.
    Unreachable,
}

/// The answer to a push.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the usual answer, and gone as soon as it is read")]
pub enum Pushing {
    /// Written; the pod as it is now.
    Ok(Pod),
    /// The pod is not in the state that was judged.
    Conflict,
    /// The pod does not exist or terminates.
    Gone,
    /// An error that does not say whether it was written.
    Unknown,
    /// No answer.
    Unreachable,
}

/// Who owns what, by this runner's view of its peers.
#[derive(Clone)]
pub enum Ownership {
    /// A single runner: everything.
    All,
    /// Not among the peers, or not known yet: nothing.
    None,
    /// What the ring says.
    Of(Arc<dyn Owns + Send + Sync>),
}

/// The ring's answer for one key. Must not change between two [`Event::Own`]s.
pub trait Owns {
    /// Whether this runner owns the key.
    fn owns(&self, shard_key: &ShardKey) -> bool;
}

// === impl Ownership ===

impl Ownership {
    /// Whether this runner owns the key.
    pub fn owns(&self, shard_key: &ShardKey) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Of(ring) => ring.owns(shard_key),
        }
    }
}

impl std::fmt::Debug for Ownership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::All => "All",
            Self::None => "None",
            Self::Of(_) => "Of(..)",
        })
    }
}

impl<F: Fn(&ShardKey) -> bool> Owns for F {
    fn owns(&self, shard_key: &ShardKey) -> bool {
        self(shard_key)
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
        /// Its name.
        name: PodName,
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
        /// The name that arbitrates.
        name: PodName,
        /// To be written into the pod.
        shard_key: ShardKey,
        /// What it is to be made from, and to be written into the pod.
        origin: Origin,
        /// To be written into the pod.
        reclaim_after: Time,
    },
    /// Delete a pod under both preconditions; answer with `Deleted`.
    Delete {
        /// The pod.
        uid: Uid,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
        /// For the log and the metrics.
        why: Why,
    },
    /// Write `reclaim_after` under both preconditions, exactly as given (it may be earlier than what is there: that
    /// is how a pod is retired); answer with `Pushed`.
    Push {
        /// The pod.
        uid: Uid,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
        /// The new `reclaim_after`.
        until: Time,
        /// The new [`place_wanted`](Pod::place_wanted), if that changes.
        place_wanted: Option<Time>,
    },
    /// Ask a pod that has served whether it still answers, on the connection of its calls; answer
    /// with `Checked`.
    Check {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
        /// Tells the answer to this one from that to another.
        number: u64,
        /// How long it may take to answer.
        within: Duration,
    },
    /// The pod does not answer: end its connection, so that its calls go elsewhere.
    Cut {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
    },
    /// Probe the pod until `Ready` or `Failed` was reported, or stop. One `Ready` ends the probe. A pod that is gone
    /// or terminates needs none: the driver may stop by itself, and is told so.
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
pub enum Why {
    /// It failed to start, died, or was not ready in time.
    Failed,
    /// Calls in it end by their deadlines alone. It may finish those that it has.
    Hung,
    /// Unused past its `reclaim_after`.
    Expired,
    /// Past its `reclaim_after`, which was brought forward since a pod of the configured version took over.
    Replaced,
    /// Past its `reclaim_after`, which was brought forward since the image has more pods than allowed.
    Surplus,
    /// Past its `reclaim_after`, which was brought forward to make a place for another image's pod.
    Evicted,
}

/// Why a call gets no pod. The texts are deterministic: no names, uids or moments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// `RESOURCE_EXHAUSTED`: the image's queue is full.
    #[error(
        "{limit} calls already wait for a pod of this function: retry later, or raise --max-queue-per-function \
         or --max-parallel-pods-per-function"
    )]
    QueueFull {
        /// `--max-queue-per-function`, or what overrides it for the image.
        limit: u32,
    },
    /// `DEADLINE_EXCEEDED`: the call's deadline passed in the queue.
    #[error(
        "the deadline passed while the call waited for a pod of this function: allow a longer deadline, warm the \
         function up, or raise --max-parallel-pods-per-function"
    )]
    DeadlineExceeded,
    /// `DEADLINE_EXCEEDED`: the call's deadline passed while there were as many pods as there may be.
    #[error(
        "the deadline passed while the call waited for a place among the function pods: raise --max-pods or the \
         ResourceQuota of the function namespace, whichever is used up, or allow a longer deadline"
    )]
    NoRoom,
    /// The pod could not be created or could not start.
    #[error("the function's pod failed to start: {reason}")]
    PodFailed {
        /// What happened and what to do about it.
        reason: Reason,
    },
    /// `DEADLINE_EXCEEDED`: pods were tried, and none was ready in time.
    #[error(
        "no pod of this function was ready within {}s{}: check that its image starts in that time, or raise \
         --pod-ready-timeout", timeout.as_secs_f64(), because(waiting.as_ref())
    )]
    NotReady {
        /// `--pod-ready-timeout`.
        timeout: Duration,
        /// What the last pod waited for, when it said so.
        waiting: Option<Reason>,
    },
}

fn because(waiting: Option<&Reason>) -> String {
    waiting.map_or_else(String::new, |reason| format!(" ({reason})"))
}
