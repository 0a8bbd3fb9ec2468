//! What needs a real Kubernetes: its API server's races and refusals, its kubelet's timing. `tests/cluster/run` starts
//! one and runs these in its network.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod certificates;
mod cold;
mod command_line;
mod deploy;
mod discovery;
mod failing;
mod faults;
mod fleet;
mod function_configs;
mod migration;
mod moved_tags;
mod outage;
mod over_porch;
mod parity;
mod porch;
mod registries;
mod rights;
mod rotation;
mod scaling;
mod scaling_processes;
mod sharing;
mod sizing;
mod smoke;
mod templates;
mod two_evaluators;
mod upgrade;
