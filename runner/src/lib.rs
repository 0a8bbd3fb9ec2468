//! The runner: answers function calls by running a local executable, or in a function pod that it keeps
//! warm.
//!
//! It is a drop-in for Porch's function runner, alone or as one of many behind the router. [`exec`] runs
//! executables; [`pods`] drives the pure pool of the `porch-fn-pool` crate over a backend. `app.rs` wires
//! it.

mod app;
mod config;
mod describe;
mod environment;
mod evaluate;
pub mod exec;
mod metrics;
mod ownership;
pub mod pods;
mod settings;
mod watched_file;

pub use app::{App, AppError, Pods};
pub use config::{Flags, PodBackend, PodConnect};
pub use evaluate::Runner;
pub use metrics::Metrics;
