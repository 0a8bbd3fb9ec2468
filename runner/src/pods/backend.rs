//! Where pods live: the interface between the pool's rules and a machine or a cluster.
//!
//! Actions go in and are carried out in the background; events come out on the channel that came
//! with the backend. Pods may appear, change and vanish without an action, and several runners may
//! act on the same pods: the backend is the arbiter, the pool copes.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{Action, Uid};
use porch_fn_registry::ResolveError;

/// A place for pods.
pub trait Backend: Send + 'static {
    /// Begins to carry out an action on a pod. Does not wait. Actions on calls are the driver's.
    fn act(&self, action: Action);

    /// The connection to a pod's wrapper; `None` when the pod is gone or has no address.
    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>>;
}

/// Knows which images can have pods, and which image a tag constraint stands for. It is asked on
/// the path of each call.
pub trait Catalog: Debug + Send + Sync + 'static {
    /// Whether pods of `image` can be made. `false` is `NOT_FOUND` to the caller.
    fn knows(&self, image: &Image) -> bool;

    /// The image of this repository whose tag is the highest that `constraint` allows; the tag of
    /// `image` itself does not matter.
    ///
    /// # Errors
    /// [`ResolveError`], when there is none or it cannot be found out.
    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, ResolveError>>;
}
