//! Tests of our binaries as processes: signals, exit codes, standard input, environments, and
//! processes that crash. The tests in `foreign` need third-party programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod cluster;
mod commands;
mod eval;
mod foreign;
mod logs;
mod nightly;
mod pod_faults;
mod pods;
mod predict;
mod runner;
mod sandboxes;
mod shells;
mod status;
mod supervision;
mod tls;
mod tracing;
mod wire;
mod wrapper;

const INPUT: &str = "kind: ResourceList\n";
