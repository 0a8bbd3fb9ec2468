//! Our binaries together with third-party programs: gRPC clients that use other libraries, KRM
//! functions that use other SDKs, a browser and Prometheus.

mod clients;
mod images;
mod metrics;
mod packages;
mod status_page;
