//! The router: a stateless gRPC proxy that sends each function call to the runner which keeps that
//! function's pods warm.
//!
//! A call's image is peeked out of its raw frame and hashed to an order of runners; the first
//! that is well and not overloaded gets the identical bytes; what breaks moves on to the next.
//! `app.rs` wires it; everything that decides is in small pure modules (`wellness`, `budget`, and the
//! ring crate).

mod app;
mod budget;
mod config;
mod error;
mod forward;
mod members;
mod metrics;
mod prober;
mod service;
mod shard;
pub mod shards;
pub mod status;
mod view;
mod wellness;

pub use app::{App, AppError};
pub use config::Flags;
