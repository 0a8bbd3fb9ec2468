//! Tests of minutes that print figures. `tests/run nightly NAME` runs one of these modules.

mod callers;
mod scale;
mod simulation;
mod sizing;
