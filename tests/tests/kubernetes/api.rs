//! Tests that need the API server and its controllers but no node. The tests mark pods as ready
//! themselves. Each test has its own namespace, so they run in parallel.

mod adoption;
mod calls;
mod clock;
mod collecting;
pub(crate) mod function_configs;
mod rights;
mod settings;
mod sharing;
mod templates;
