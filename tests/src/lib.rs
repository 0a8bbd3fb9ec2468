//! What the end-to-end tests share: fake runners, a process harness, callers.

pub mod browser;
pub mod caller;
pub mod client;
pub mod cluster;
pub mod fake_runner;
pub mod fleet;
pub mod foreign;
pub mod load;
pub mod process;
pub mod registry;
pub mod rights;
pub mod scaling;
pub mod stack;
