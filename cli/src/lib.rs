//! porch-fn: try the function runner on a laptop, evaluate packages, look at shards.
//!
//! [`run`] is the command line. [`package`] reads and writes kpt packages as functions see them.

mod commands;
mod eval;
pub mod package;
mod progress;
mod shards;
mod up;

pub use commands::run;
