//! Tests that need the API server and its controllers but no node. A fake kubelet reports the pods
//! as ready, and one wrapper-server answers for all of them (tests/src/cluster/kubelet.rs). Each
//! test has its own namespace, so the tests run in parallel.

mod adoption;
mod calls;
mod clock;
mod collecting;
pub(crate) mod function_configs;
mod rights;
mod settings;
mod sharing;
mod templates;
