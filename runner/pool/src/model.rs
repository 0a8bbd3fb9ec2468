//! Several pools against a model of the API server: the test of the rules that hold between
//! runners.
//!
//! A history is one seed. It draws a configuration, then runs ten minutes or so of requests with
//! everything that can go wrong (late and broken watches, lost answers, outages, skewed clocks,
//! changing owners and versions, pods that start slowly, fail, die, hang in termination or are
//! deleted by others), then lets the faults end and checks that every image works and, at the end,
//! that nothing is left. Whatever must always hold is checked at every step.

mod actions;
mod faults;
mod mutants;
mod pods;
mod recovery;
mod rng;
mod runner;
mod server;
mod world;

use std::collections::BTreeMap;

pub(crate) use mutants::Mutant;
pub(crate) use rng::Rng;
pub(crate) use server::Server;
pub(crate) use world::run;

use crate::function::Pool;
use crate::shared::Totals;

/// How often something happened in a history, to show that the histories are not empty.
pub(crate) type Counts = BTreeMap<String, u64>;

// === impl Pool ===

impl Pool {
    /// Whether nothing is remembered: no pod, no call, no failure.
    pub(crate) fn is_empty(&self) -> bool {
        let shared = &self.shared;
        self.functions.is_empty()
            && shared.calls.is_empty()
            && shared.images.is_empty()
            && shared.timers.is_empty()
            && shared.wanting.is_empty()
            && shared.totals == Totals::default()
    }
}
