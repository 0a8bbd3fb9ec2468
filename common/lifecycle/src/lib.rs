//! How a server runs and ends: unready, stop accepting, finish what is in hand, deadline, exit.

mod app;
pub mod drain;
pub mod health;
mod signals;
pub mod tasks;

pub use self::app::{App, AtEnd, DrainTimes, Drained, run};
pub use self::signals::StopSignals;
