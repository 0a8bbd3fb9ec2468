//! Tests that take minutes and print figures. `tests/run nightly NAME` runs one of these modules.

mod callers;
mod pods;
mod sandboxes;
mod scale;
mod simulation;
mod sizing;
mod stores;
mod wire;
