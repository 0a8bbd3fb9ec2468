//! porch-fn: try the function runner on a laptop, evaluate packages, check an installation.
//!
//! [`run`] is the command line.

// It panics when the reader of standard error has gone.
#![warn(clippy::print_stderr)]

mod admin;
#[cfg(feature = "up")]
mod advice;
mod bench;
mod call;
mod cluster;
mod commands;
mod config;
mod doctor;
#[cfg(feature = "up")]
mod engine;
mod eval;
mod exec_config;
mod failure;
#[cfg(feature = "up")]
mod images;
#[cfg(feature = "up")]
mod mounts;
#[cfg(feature = "up")]
mod one_shot;
mod output;
mod porch_config;
mod progress;
mod shards;
#[cfg(feature = "up")]
mod shim;
#[cfg(feature = "up")]
mod streams;
#[cfg(test)]
mod testing;
mod top;
#[cfg(feature = "up")]
mod up;

pub use commands::run;
