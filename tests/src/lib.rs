//! What the end-to-end tests share: fake runners, a process harness, callers.

// Names say it here; what they do not say has a comment.
#![allow(missing_docs)]

pub mod browser;
pub mod caller;
pub mod client;
pub mod cluster;
pub mod echo;
pub mod fake_runner;
pub mod fleet;
pub mod foreign;
pub mod load;
pub mod process;
pub mod registry;
pub mod rights;
pub mod scaling;
pub mod stack;
