//! The lifecycle of a server. At its end, it becomes unready, stops accepting, finishes calls in
//! flight until a deadline, and exits.

mod app;
pub mod drain;
pub mod health;
mod signals;
pub mod tasks;

pub use self::app::{App, AtEnd, DrainTimes, Drained, run};
pub use self::signals::StopSignals;
