//! The pool of function pods as a pure state machine: events in, actions out, time as an argument.
//!
//! Several runners share one set of pods through the API server, without leases, locks or a leader.
//! Each runner has a [`Pool`], and learns about the other runners only from what they write into
//! the pod objects. Everything here is deterministic and without I/O, so that a property test can
//! run several pools with faults between them. A driver carries out the [`Action`]s and reports
//! [`Event`]s.
//!
//! ```text
//!               Create                   probe succeeds
//!   (nothing) ─────────► starting ───────────────────────► ready ◄─────────┐
//!       ▲                 │    ▲                            │  │           │ pushed by
//!       │       not ready │    │ call broken: probe again   │  │ notice    │ any user
//!       │         in time,│    └────────────────────────────┘  ▼           │
//!       │       or it died│                                 leaving ───────┘
//!       │                 ▼                                    │
//!       │               failed                                 │ past reclaim_after, unused here:
//!       │                 │ the owner or the creator           │ the owner, and nobody else
//!       │  gone           ▼                                    ▼
//!       └──────────── terminating ◄────────────── Delete (if uid and resource version match)
//! ```
//!
//! The rules, each with its module:
//!
//! - **Names arbitrate** (`scale`). A pod's name is derived from image and slot. Runners that start
//!   a pod at the same time collide on the name, and the loser uses the winner's pod. All runners
//!   together use only the slots `0..max_pods`. One extra slot, the surge slot, is for the
//!   successor of a pod that is replaced. It is also used while all pods terminate, have failed or
//!   do not answer. If a pod is stuck in termination, the new pod gets another name.
//! - **Any ready pod serves** (`calls`). A pod with room takes a call at once, whatever it was
//!   created from and whichever runner owns it. If no pod has room, the call waits in a bounded
//!   FIFO queue.
//! - **One more pod** (`scale`) starts when even the least loaded pod has `--max-waitlist-length`
//!   calls.
//! - **A failed start is reported at once** (`scale`, `liveness`) to the waiting calls that no
//!   other pod can serve. The pause before the next start grows.
//! - **A pod in use is not deleted** (`reclaim`, `collect`). Every runner that uses a pod pushes
//!   the pod: it writes a later `reclaim_after`. It does so early, because clocks may differ by up
//!   to [`Config::skew`]. Only the owner deletes the pod, only after `reclaim_after`, and only if
//!   the resource version is still the one that the owner based its decision on. To delete a pod
//!   early, the owner gives notice: it sets `reclaim_after` to a near time. If another runner uses
//!   the pod, that runner pushes the pod again, and the owner does not delete it yet.
//! - **Outdated pods are replaced, not evicted** (`replace`). The owner replaces one pod at a time
//!   and starts the new pod first. A pod is outdated if its configuration or image content
//!   ([`PodRecipe`]) differs from the owner's, unless the pod's is newer.
//! - **A pod that does not answer is replaced** (`liveness`). It stops counting towards the limit
//!   at once. The runner probes it until the pod serves again or the runner gives up.
//! - **A minimum is kept** (`min_pods`). The owner starts `min_pods` pods of an image and pushes
//!   them as if they were in use. It always pushes the same pods. Other unused pods expire: their
//!   `reclaim_after` passes.
//! - **All images share a capacity** (`capacity`). A place is the room for one pod. When no place
//!   is free, the pod that was unused for longest gets notice, and calls wait for its place.
//! - **The watch may be late** (`watch`), so no decision requires a current view of the pods.
//!   Writes carry the resource version that the decision was based on. After a gap in the watch,
//!   the owner deletes no unused pod until other runners have had time to push.
//!
//! The owner of an image collects (deletes) unused pods, replaces outdated pods, keeps `min_pods`,
//! and warms the image up. Any runner may serve a call, or start a pod for a call. A change of the
//! owner starts and deletes no pod.
//!
//! A module uses only modules before it in this list: `types`, `config`, `event`, `queue`,
//! `shared`, `tracked`, `start`, `function`, then the rules, then `pool`. One rule uses another:
//! `min_pods` uses `scale`.

mod calls;
mod capacity;
mod collect;
mod config;
mod event;
mod function;
mod liveness;
mod min_pods;
#[cfg(test)]
mod model;
mod pool;
mod queue;
mod reclaim;
mod replace;
mod scale;
mod shared;
mod start;
#[cfg(test)]
mod tests;
mod tracked;
mod types;
mod watch;

pub use config::{Config, ImageSettings, Limits};
pub use event::{Action, Creation, DeleteReason, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
pub use function::{FunctionStats, PodStats, Pool};
pub use types::{
    Digest, ImageContent, ImageKey, Lookup, Phase, Pod, PodName, PodRecipe, Reason, RequestId,
    ResourceVersion, ShardKey, Time, Uid, Version,
};
