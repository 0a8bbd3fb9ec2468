//! Which runner serves which image.
//!
//! Every router, and every runner with peers, computes the same answer from the set of runners,
//! without shared state. The crate is pure (no I/O, no clock, no logging): golden vectors pin the
//! answer, and a simulation checks how [`spill`] spreads the load.
//!
//! * [`Ring`] turns an image's shard key into a preference order of runners.
//! * [`spill`] computes how many runners of that order share a busy image, and which one gets a
//!   request.
//!
//! Agreement is only an optimisation: any runner serves any image. While two routers know different
//! sets of runners, calls are less local but still correct.

mod ring;
pub mod spill;

pub use ring::{FULL_LIST_NODES, HASH_SCHEME, MAX_NODES, Ring, SUCCESSORS, VIRTUAL_NODES, fingerprint};
