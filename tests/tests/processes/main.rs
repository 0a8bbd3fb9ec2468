//! Our binaries as processes: what signals, exit codes, standard input, environments, and the death of a
//! neighbour do to them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod exec_config;
mod holding;
mod logs;
mod pod_faults;
mod pods;
mod porch_config;
mod proxy;
mod runner;
mod status;
mod supervision;
mod tls;
mod tracing;
mod wrapper;
