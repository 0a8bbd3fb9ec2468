//! Tests that break or measure the cluster, or install a whole system. They run one at a time.

mod cold;
pub(crate) mod deploy;
pub(crate) mod faults;
mod function_configs;
pub(crate) mod outage;
mod over_porch;
pub(crate) mod porch;
pub(crate) mod scaling;
