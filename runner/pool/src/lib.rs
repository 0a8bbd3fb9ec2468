//! The pool of function pods as a pure state machine: events in, actions out, time as an argument.
//!
//! Several runners share one set of pods through the API server, without leases, locks or a leader.
//! Each runs a [`Pool`] and knows the others only by what they write into the pods. Everything here
//! is deterministic and without I/O, so that several pools and the faults between them run as a
//! property test. A driver carries out the [`Action`]s and reports [`Event`]s.
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
//!       └──────────── terminating ◄────────────── Delete (uid and resource version as judged)
//! ```
//!
//! The rules, each with its module:
//!
//! - **Names arbitrate** (`scale`). A pod's name follows from image and slot. Runners that start a
//!   pod at the same time collide on the name, and the loser uses the winner's pod. Slots
//!   `0..max_pods` are the limit of all runners together. One more slot, the surge slot, serves to
//!   replace a pod, or to start one while all others end or do not answer. A name whose holder is
//!   stuck in termination is avoided.
//! - **Any ready pod serves** (`calls`). A pod with room takes a call at once, whatever it was
//!   created from and whichever runner owns it. Beyond that calls queue, in order and bounded.
//! - **One more pod** (`scale`) starts when the least loaded one has as many calls as the waitlist.
//! - **A failed start is reported at once** (`scale`, `liveness`) to the calls that wait for
//!   nothing else, and the pause before the next start grows.
//! - **A pod in use is not deleted** (`reclaim`, `collect`). Users push `reclaim_after` forward,
//!   early enough for every clock. Only the owner deletes, only past it, and only the resource
//!   version that it judged. To delete a pod early, it gives notice: it brings `reclaim_after`
//!   near, and a user objects by pushing it away.
//! - **Outdated pods are replaced, not evicted** (`replace`): by the owner, one at a time, the new
//!   pod first. A pod is outdated if its configuration or its image's content differs, unless the
//!   part that differs is newer ([`PodRecipe`]).
//! - **A pod that does not answer is replaced** (`liveness`): it stops counting towards the limit
//!   at once, and is probed until it serves again or is given up.
//! - **A minimum is kept** (`min_pods`): the owner starts `min_pods` of an image and pushes them as
//!   if they were in use, always the same ones. The image's other pods lapse.
//! - **All images share a capacity** (`capacity`). When it is used up, the pod that was unused for
//!   longest gets notice, and calls wait for its place.
//! - **The watch is late** (`watch`). No decision relies on a current view: writes carry the
//!   resource version judged, and after a gap the owner waits until others could have pushed.
//!
//! The owner of an image collects, replaces, keeps and warms up its pods. Any runner may serve a
//! call or start a pod for one. A change of the owner starts and deletes nothing.
//!
//! Modules use only modules above them in this list: `types`, `config`, `event`, `queue`, `shared`,
//! `tracked`, `start`, `function`, then the rules, then `pool`. Of the rules, `min_pods` uses
//! `scale`.

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

pub use config::{Config, Limits, Override, Overrides};
pub use event::{Action, Creation, DeleteReason, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
pub use function::FunctionStats;
pub use pool::Pool;
pub use types::{
    Digest, ImageContent, ImageKey, Phase, Pod, PodName, PodRecipe, Reason, RequestId, ResourceVersion,
    ShardKey, Time, Uid, Version,
};
