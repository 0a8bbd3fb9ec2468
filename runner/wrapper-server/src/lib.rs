//! Runs a KRM function as one process per call and judges its output.
//!
//! In a function pod, this program is the entry point and starts the function. The parts can be
//! tested separately: [`process`] runs one process and does not read its output, [`resource_list`]
//! reads an output and runs nothing, and [`outcome`] turns the results of both into the status code
//! and text that Porch knows. The runner's exec runtime uses [`process`] and [`outcome`] too.
//! `service.rs` calls the parts for each gRPC request, and `app.rs` wires the server. `install.rs`
//! copies the binary into a function's container, and `health_probe.rs` checks the health of a
//! server there.

#![warn(clippy::print_stderr)]

mod announce;
mod app;
mod client;
mod config;
mod go_text;
mod health_probe;
mod install;
pub mod outcome;
pub mod process;
pub mod resource_list;
mod service;

pub use app::{Inherited, run, run_in_sandbox, start};
pub use config::Flags;
pub use go_text::{go_exit_text, go_os_error, go_quote};
pub use porch_fn_lifecycle::App;
