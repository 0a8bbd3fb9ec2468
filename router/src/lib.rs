//! The router: a stateless gRPC proxy that sends each function call to the runner which keeps that
//! function's pods warm.
//!
//! A call's image is peeked out of its raw frame and hashed to an order of runners; the first that
//! is healthy and not overloaded gets the identical bytes; a call that breaks moves on to the next.
//! `app.rs` wires it; everything that decides is in small pure modules (`health`, `budget`, and the
//! ring crate).

mod app;
mod budget;
mod config;
mod error;
mod forward;
mod health;
mod members;
mod metrics;
mod page;
mod prober;
mod runner;
mod service;
mod view;

pub use app::{AppError, start};
pub use config::Flags;
pub use porch_fn_lifecycle::App;
