//! Tests of the router: real HTTP/2 calls go through it to fake runners.

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

/// How long a call waits if no runner is available.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
