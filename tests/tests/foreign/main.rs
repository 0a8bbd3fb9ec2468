//! Our binaries among programs that share no code with them: gRPC clients on other libraries, and KRM functions
//! on others' SDKs. And a browser.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod metrics;
mod packages;
mod status_page;
