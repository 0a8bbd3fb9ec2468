//! Tests that need a node: it pulls images, and containers start, fail and die there. Each test has
//! its own namespace, so they run in parallel.

mod calls;
mod failing;
mod registries;
mod templates;
