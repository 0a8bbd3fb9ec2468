//! What takes minutes; `tests/run nightly` runs it and prints figures.

mod certificates;
mod faults;
mod fleet;
mod migration;
mod outage;
mod overload;
mod scaling;
mod sizing;
mod upgrade;
