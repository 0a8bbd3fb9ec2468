//! Where pods live: the seam between the pool's rules and a machine or a cluster.
//!
//! Orders go in and are carried out in the background; events come out on the channel that came with the
//! backend. Pods may appear, change and vanish without an order, and several runners may order the same
//! pods: the backend is the arbiter, the pool copes.

use std::sync::Arc;

use porch_fn_image::Image;
use porch_fn_pool::{PodName, ResourceVersion, ShardKey, Time, Uid, Version};
use porch_fn_service::conn::Connection;

/// Something to do about a pod. Each `Create`, `Delete` and `Push` is answered by one event.
#[derive(Debug, Clone)]
pub enum Order {
    /// Create a pod; answered by `Created`.
    Create {
        /// The name that arbitrates.
        name: PodName,
        /// To be kept with the pod.
        shard_key: ShardKey,
        /// To be kept with the pod.
        version: Version,
        /// To be kept with the pod.
        config_time: Option<Time>,
        /// To be kept with the pod.
        reclaim_after: Time,
    },
    /// Delete the pod if it is still in the state that was judged; answered by `Deleted`.
    Delete {
        /// The pod.
        uid: Uid,
        /// The judged state.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
    },
    /// Write the pod's reclaim-after if it is still in the state that was judged; answered by `Pushed`.
    Push {
        /// The pod.
        uid: Uid,
        /// The judged state.
        resource_version: ResourceVersion,
        /// Its name.
        name: PodName,
        /// The new value, exactly.
        until: Time,
    },
    /// Ask the pod's wrapper for its health until it serves, which is told by `Ready`; or stop asking.
    Probe {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
        /// Start or stop.
        on: bool,
    },
}

/// A place for pods.
pub trait Backend: Send + 'static {
    /// Begins to carry out `order`. Does not wait.
    fn order(&self, order: Order);

    /// The connection to a pod's wrapper; `None` when the pod is gone or has no address.
    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>>;
}

/// Says which images can have pods at all; asked on the path of each call.
pub trait Catalog: std::fmt::Debug + Send + Sync + 'static {
    /// Whether pods of `image` can be made. `false` is `NOT_FOUND` to the caller.
    fn knows(&self, image: &Image) -> bool;
}
