//! Tests of the rules, one file per subject, and the histories of several pools.

mod calls;
mod capacity;
mod collecting;
mod fuzz;
mod histories;
mod liveness;
mod min_pods;
mod recipe;
mod reclaim;
mod replacing;
mod rig;
mod scaling;
mod starting;
mod warming;
