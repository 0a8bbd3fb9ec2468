//! Tests of our binaries as processes: signals, exit codes, standard input, environments, and the
//! death of a neighbour process.
//!
//! tests/run runs the groups by the first part of their tests' names. `foreign` needs third-party
//! programs, `nightly` takes minutes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod commands;
mod foreign;
mod logs;
mod nightly;
mod pod_faults;
mod pods;
mod runner;
mod status;
mod supervision;
mod tls;
mod tracing;
mod wrapper;

const INPUT: &str = "kind: ResourceList\n";
