//! Tests of the router from outside: a real HTTP/2 call goes in, and fake runners behind the router
//! decide what happens to it. Each module tests one kind of behaviour.

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

/// How long a call waits for a runner if none is available.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
