//! Which runner serves which image.
//!
//! Every router, and every runner that knows its peers, computes the same answer on its own from the set of
//! runners: there is no table to share and nothing to lock. The crate is pure (no I/O, no clock, no logging),
//! so the answer can be pinned by golden vectors and the load rule can be simulated.
//!
//! * [`Ring`] turns an image's shard key into a preference order of runners.
//! * [`spill`] says how many runners of that order share a busy image, and which of them takes a request.
//!
//! Agreement is an optimisation, never a condition: any runner serves any image. Two views that differ for a
//! while cost locality, not correctness.

mod identity;
mod ring;
pub mod spill;

pub use identity::Identity;
pub use ring::{
    FULL_LIST_NODES, HASH_SCHEME, MAX_NODES, Ring, RingError, SUCCESSORS, VIRTUAL_NODES, fingerprint,
};
