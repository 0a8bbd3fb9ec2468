//! Our binaries with programs that share no code with them: gRPC clients on other libraries, KRM
//! functions on other SDKs, a browser and Prometheus.

mod clients;
mod metrics;
mod packages;
mod status_page;
