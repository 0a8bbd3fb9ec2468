//! Where pods live: the seam between the pool's rules and a machine or a cluster.
//!
//! Orders go in and are carried out in the background; events come out on the channel that came with the
//! backend. Pods may appear, change and vanish without an order, and several runners may order the same
//! pods: the backend is the arbiter, the pool copes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{PodName, PodRecipe, ResourceVersion, ShardKey, Time, Uid};

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
        recipe: PodRecipe,
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
        /// It has failed: there is nothing that it could finish.
        failed: bool,
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
        /// When another runner's pod was asked to make place, if this asks it.
        place_wanted: Option<Time>,
    },
    /// Ask the pod's wrapper whether it still answers, on the connection that calls use; answered by `Checked`.
    Check {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: PodName,
        /// To be given back with the answer.
        number: u64,
        /// How long it may take to answer.
        within: Duration,
    },
    /// End the connection to the pod, so that the calls on it break off.
    Disconnect {
        /// The pod.
        uid: Uid,
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

    /// How far the clock by which moments in pods are written is ahead of this machine's, when it starts.
    fn clock_ahead(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    /// The connection to a pod's wrapper; `None` when the pod is gone or has no address.
    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>>;
}

/// Says which images can have pods, and which image a tag constraint stands for; asked on the path of each call.
pub trait Catalog: std::fmt::Debug + Send + Sync + 'static {
    /// Whether pods of `image` can be made. `false` is `NOT_FOUND` to the caller.
    fn knows(&self, image: &Image) -> bool;

    /// The image of this repository whose tag is the highest that `constraint` allows; the tag of `image` itself does
    /// not matter.
    ///
    /// # Errors
    /// [`Unresolved`], when there is none or it cannot be found out.
    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, Unresolved>>;
}

/// Why a tag constraint stands for no image. The texts reach callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// No tag is a version that the constraint allows.
    #[error("no tag of its repository is a version that matches")]
    NoMatch,
    /// The repository is not there, or hidden.
    #[error("{0}")]
    NotFound(String),
    /// The tags are not known.
    #[error("{0}")]
    Failed(String),
}
