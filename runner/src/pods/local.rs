//! Pods without a cluster: each is a wrapper-server process on loopback. The whole path (pool,
//! queues, wrapper, collection) runs on a laptop with nothing installed.
//!
//! [`LocalCluster`] has the API server's part: names arbitrate, writes have preconditions, and
//! every runner attached to it receives what happens to the pods. It is not a model of Kubernetes;
//! what Kubernetes does is tested on Kubernetes.

mod backend;
mod cluster;
mod process;

pub use backend::LocalBackend;
pub use cluster::LocalCluster;
pub use process::LocalOptions;
