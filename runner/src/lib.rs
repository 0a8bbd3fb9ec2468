//! The runner: answers function calls by running a local executable, or in a function pod that it
//! keeps warm.
//!
//! It is a drop-in replacement for Porch's function runner. It runs alone, or as one of many behind
//! the router. `exec.rs` runs executables. [`pods`] drives the pool of the `porch-fn-pool` crate
//! over a backend. `app.rs` connects them.

mod app;
mod clock;
mod describe;
mod environment;
mod evaluate;
mod exec;
mod last_errors;
mod metrics;
mod ownership;
pub mod pods;
mod settings;
mod settings_file;

pub use app::{AppError, start};
pub use porch_fn_lifecycle::App;
pub use porch_fn_runner_config::{Flags, PodBackend, PodConnect};
