//! Pods without a cluster: each is a wrapper-server process on loopback, or a sandbox with an
//! image's files. The whole path (pool, queues, wrapper, collection) runs on a laptop with nothing
//! installed.
//!
//! [`LocalCluster`] takes the role of the API server: names are unique, writes have preconditions,
//! and every attached runner receives all pod events. It is not a model of Kubernetes; tests of
//! Kubernetes behaviour run on Kubernetes.

mod cluster;
mod pod;
mod wrapper;

pub use cluster::LocalCluster;
pub use pod::{Control, Place, Pod, Pulling, Sandboxes};
pub use wrapper::LocalOptions;
