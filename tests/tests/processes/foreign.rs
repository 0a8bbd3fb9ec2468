//! Our binaries together with third-party programs: gRPC clients that use other libraries, KRM
//! functions that use other SDKs, kpt, kustomize, runc, a browser and Prometheus.

mod clients;
mod containers;
mod images;
mod kpt;
mod metrics;
mod packages;
mod status_page;
