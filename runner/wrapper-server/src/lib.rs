//! Runs a KRM function as one process per call and judges what came out of it.
//!
//! Porch's function runner puts this in front of the function in every pod. The parts are kept apart so that each
//! can be tested by itself: [`process`] runs one process and never looks at its output, [`resource_list`] reads an
//! output and never runs anything, and [`outcome`] turns both into the status code and text that Porch knows.
//! The runner's exec runtime uses [`process`] and [`outcome`] too. `service.rs` puts them behind the gRPC method, `app.rs` wires the
//! server. `install.rs` and `copy.rs` bring the binary into a function's container, `health_probe.rs` asks it there how it is.

mod app;
mod config;
mod copy;
mod go_text;
mod health_probe;
mod install;
pub mod outcome;
pub mod process;
pub mod resource_list;
mod service;

pub use app::{App, run};
pub use config::Flags;
pub use go_text::{go_exit_text, go_os_error, go_quote};
pub use service::Wrapper;
