//! The router: a stateless gRPC proxy that sends each function call to the runner which keeps that
//! function's pods warm.
//!
//! The router reads a call's image from the raw frame. The image's hash gives the order in which
//! runners are preferred. The first runner that is healthy and not overloaded gets the same bytes.
//! If the connection is lost, the call moves to the next runner. `app.rs` connects the parts. The
//! decisions are in small pure modules: `health`, `budget` and the ring crate.

mod app;
mod budget;
mod config;
mod error;
mod forward;
mod health;
mod hints;
mod members;
mod metrics;
mod page;
mod predict;
mod prober;
mod runner;
mod service;
mod totals;
mod view;

pub use app::{AppError, start};
pub use config::Flags;
pub use porch_fn_lifecycle::App;
