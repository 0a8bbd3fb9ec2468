//! What every server of the project needs around its own logic: flags, gRPC over hyper, health, drain,
//! admin endpoints, discovery and logs. Mechanisms only, no knowledge of pools or rings.
//!
//! The wrapper-server uses the default features, which keep it small; the router and the runner add
//! `admin`, `client` and `discovery`, which takes `kubernetes` with it.

#[cfg(feature = "admin")]
pub mod admin;
pub mod causes;
#[cfg(feature = "client")]
pub mod conn;
#[cfg(feature = "discovery")]
pub mod discovery;
pub mod drain;
pub mod flags;
pub mod grpc;
pub mod health;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod lifecycle;
pub mod listen;
#[cfg(feature = "admin")]
pub mod rpc_metrics;
pub mod serve;
pub mod tasks;
pub mod telemetry;
#[cfg(feature = "client")]
pub mod tls;
pub mod trace_context;
#[cfg(feature = "client")]
pub mod unary;
