//! Tests that need a node, which pulls images and runs containers. Each test has its own namespace,
//! so they run in parallel.

mod calls;
mod failing;
mod registries;
mod templates;
