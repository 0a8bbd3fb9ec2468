//! What needs the API server and its controllers but no node: the tests report pods as ready
//! themselves. They have namespaces of their own and run side by side.

mod adoption;
mod calls;
mod clock;
mod collecting;
pub(crate) mod function_configs;
mod rights;
mod settings;
mod sharing;
mod templates;
