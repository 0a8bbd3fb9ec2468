//! porch-fn: try the function runner on a laptop, evaluate packages, check an installation.
//!
//! [`run`] is the command line.

// It panics when the reader of standard error has gone.
#![warn(clippy::print_stderr)]

mod admin;
mod bench;
mod call;
mod cluster;
mod commands;
mod config;
mod doctor;
mod eval;
mod exec_config;
mod failure;
#[cfg(feature = "up")]
mod images;
#[cfg(feature = "up")]
mod one_shot;
mod output;
mod porch_config;
mod progress;
mod shards;
#[cfg(feature = "up")]
mod shim;
#[cfg(test)]
mod testing;
mod top;
#[cfg(feature = "up")]
mod up;

pub use commands::run;
