//! What needs a node: images that are pulled, and containers that start, fail and die.
//! The tests have namespaces of their own and run side by side.

mod calls;
mod failing;
mod registries;
mod templates;
