//! The router through its front door: a real HTTP/2 call goes in, and fake runners behind it decide
//! what happens to it. One module for each kind of promise.

mod deadlines;
mod drain;
mod errors;
mod health;
mod hops;
mod limits;
mod outliers;
mod retries;
mod routing;
mod status;

use std::time::Duration;

/// For so long a call waits for a runner where there is none.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
