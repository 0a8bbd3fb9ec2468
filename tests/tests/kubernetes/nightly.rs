//! Tests that take minutes. `tests/run nightly` runs them and prints figures.

mod certificates;
mod faults;
mod fleet;
mod migration;
mod outage;
mod overload;
mod scaling;
mod sizing;
mod upgrade;
