//! The pool of function pods as a pure state machine: events in, actions out, time as an argument.
//!
//! Several runners share one set of pods through the API server, without leases, locks or a leader. Each runs a
//! [`Pool`]; what they know of each other is what they read in the pods. Everything here is deterministic and without
//! I/O, so that the whole of it, with several pools and everything that can go wrong between them, runs as a property
//! test. A driver carries the [`Action`]s out and reports [`Event`]s.
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
//!       └──────────── terminating ◄────────────────────────── Delete (uid and resource version as judged)
//! ```
//!
//! The rules, each with the module that holds it:
//!
//! - **Names arbitrate** (`scale`). A pod's name follows from image and slot. Runners that start a pod at the same time
//!   collide on the name, and the loser takes the winner's pod. Slots `0..max_pods` are the limit, for all runners
//!   together; one more slot serves to replace a pod, or takes a pod while all the others end or do not answer. A name
//!   whose holder is stuck in termination is passed.
//! - **Whoever is asked serves** (`select`). Any ready pod with room takes a call at once, whatever it was made from
//!   and whoever owns it. Past the concurrency of the pods calls queue, in order and bounded.
//! - **One more pod** (`scale`) when the least loaded one has as many calls as the waitlist is long.
//! - **A failed start is told at once** (`start`, `probe`) to those who wait for nothing else, and the next start waits
//!   a little longer each time.
//! - **A pod in use is not deleted** (`reclaim`, `collect`). Users push `reclaim_after` forward, early enough for every
//!   clock. The owner alone deletes, only past it, and never in a state other than the one it judged. To be rid of
//!   a pod early it gives notice, by bringing `reclaim_after` near; a user objects by pushing it away.
//! - **Outdated pods are replaced, not evicted** (`replace`): by the owner, one at a time, the new pod first. A pod is
//!   outdated where its configuration or its image's content differs, unless what differs is newer ([`Origin`]).
//! - **A pod that does not answer is replaced** (`hearing`), not waited for: it stops counting towards the limit, and
//!   is probed until it serves again or is given up.
//! - **Some pods are kept** (`keep`): the owner starts `min_pods` of an image and pushes them as if they were in use,
//!   always the same ones. The others of the image lapse as any pod does.
//! - **There is room for so many pods** (`capacity`) of all images together. When it is used up, the pod that was unused
//!   for longest gets notice, and calls wait for its place.
//! - **The watch is late** (`watch`). No judgement rests on its being current: writes carry what was judged, answers
//!   that it has overtaken are dropped, and after a gap the owner waits until others could have spoken.
//!
//! Ownership decides who collects, replaces, keeps and warms up, never who may serve a call or start a pod for one. When a shard moves, nothing
//! happens: the new owner finds the pods that run.

mod breakage;
mod calls;
mod capacity;
mod collect;
mod config;
mod event;
mod function;
mod hearing;
mod keep;
#[cfg(test)]
mod model;
mod pool;
mod probe;
mod queue;
mod reclaim;
mod replace;
mod scale;
mod select;
mod shared;
mod start;
#[cfg(test)]
mod tests;
mod tracked;
mod types;
mod watch;

pub use config::{Config, Limits, Override, Overrides};
pub use event::{Action, Creation, Deletion, Event, Ownership, Owns, Pushing, Rejection, Verdict, Why};
pub use pool::{FunctionStats, Pool};
pub use types::{
    Content, Digest, ImageKey, Origin, Phase, Pod, PodName, Reason, RequestId, ResourceVersion, ShardKey,
    Time, Uid, Version,
};
