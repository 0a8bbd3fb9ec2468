//! What needs a real Kubernetes. `tests/cluster/run` starts one and runs these in its network,
//! group by group.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Tests that disturb others or measure time: one at a time.
mod alone;
/// What an API server and its controllers decide: no pod runs.
mod api;
/// Runs of minutes, one at a time.
mod nightly;
/// Pods that a kubelet starts and stops.
mod node;
mod rig;
