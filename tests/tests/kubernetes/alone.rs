//! What breaks or measures the cluster for others, or installs a whole system: one test at a time.

mod cold;
pub(crate) mod deploy;
pub(crate) mod faults;
mod function_configs;
pub(crate) mod outage;
mod over_porch;
pub(crate) mod porch;
pub(crate) mod scaling;
