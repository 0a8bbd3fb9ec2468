//! porch-fn: try the function runner on a laptop, evaluate packages, look at shards.
//!
//! [`run`] is the command line. [`package`] reads and writes kpt packages as functions see them.

mod admin;
mod cluster;
mod commands;
mod completion;
mod config;
mod doctor;
mod eval;
mod output;
pub mod package;
mod progress;
mod shards;
mod up;

pub use commands::run;
