//! Shared code of the end-to-end tests: fake runners, a process harness, callers.

// A comment is written only where the name does not explain the item.
#![allow(missing_docs)]

pub mod browser;
pub mod caller;
pub mod client;
pub mod cluster;
pub mod echo;
pub mod fake_runner;
pub mod fleet;
pub mod foreign;
pub mod image;
pub mod image_user;
pub mod load;
pub mod process;
pub mod random;
pub mod raw;
pub mod registry;
pub mod rights;
pub mod scaling;
pub mod stack;
pub mod tree;
