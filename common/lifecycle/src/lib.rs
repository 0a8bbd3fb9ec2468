//! The lifecycle of a server: its tasks, its health, and its drain. In a drain the server becomes
//! unready, stops accepting, finishes calls in flight until a deadline, and exits.

mod app;
pub mod drain;
pub mod health;
mod name;
mod runtime;
mod signals;
pub mod tasks;

pub use self::app::{App, AtEnd, DrainTimes, run};
pub use self::name::server_name;
pub use self::runtime::block_on;
pub use self::signals::StopSignals;
