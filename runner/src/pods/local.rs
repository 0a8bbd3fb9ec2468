//! Pods without a cluster: each is a wrapper-server process on loopback. The whole path (pool,
//! queues, wrapper, collection) runs on a laptop with nothing installed.
//!
//! [`LocalCluster`] takes the role of the API server: names are unique, writes have preconditions,
//! and every attached runner receives all pod events. It is not a model of Kubernetes; tests of
//! Kubernetes behaviour run on Kubernetes.

mod backend;
mod cluster;
mod process;

pub use backend::LocalBackend;
pub use cluster::LocalCluster;
pub use process::LocalOptions;
