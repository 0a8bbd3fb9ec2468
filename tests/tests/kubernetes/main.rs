//! Tests that need a real Kubernetes cluster. `tests/cluster/run` starts one and runs these tests
//! in its network, group by group.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Tests that disturb other tests or measure time. They run one at a time.
mod alone;
/// Tests that need the API server and its controllers. No pod runs.
mod api;
/// Tests that take minutes. They run one at a time.
mod nightly;
/// Tests with pods that a kubelet starts and stops.
mod node;
mod rig;
