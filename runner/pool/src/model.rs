//! Tests the rules that hold between runners: several pools run against a model of the API server.
//!
//! One seed determines a whole test run (a history). The history draws a random configuration and
//! runs about ten minutes of requests with many faults: late and lost watches, lost answers,
//! outages, skewed clocks, changes of owners, configuration and tags. Pods start slowly, fail, die,
//! hang in termination, or are deleted by others. Then the faults end. The model checks that every
//! image works and that no pod or call is left. It checks the invariants at every step.

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

/// How often each kind of event occurred. The tests check that every expected kind occurred.
pub(crate) type Counts = BTreeMap<String, u64>;

// === impl Pool ===

impl Pool {
    /// Whether the pool has no pod, no call and no failure left.
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
