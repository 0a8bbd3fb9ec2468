//! Our binaries together with third-party programs: gRPC clients that use other libraries, KRM
//! functions that use other SDKs, a browser, Prometheus and
//! runc.

mod clients;
mod containers;
mod images;
mod metrics;
mod packages;
mod status_page;
