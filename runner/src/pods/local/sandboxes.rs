//! What the runner knows of sandboxes: nothing but this. `porch-fn up` brings them. The runner of a
//! cluster may create pods there, so it runs no image itself.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageContent, ImageKey, Reason};
use porch_fn_registry::ResolveError;
use tokio::sync::{broadcast, oneshot};

/// Runs pods of images that have no command on this machine.
pub trait Sandboxes: fmt::Debug + Send + Sync {
    /// Gets the image, so that a pod of it can start. `wrapper` are the wrapper-server's arguments.
    /// Calls `pulling` if that takes a pull.
    fn prepare<'a>(
        &'a self,
        image: &'a ImageKey,
        wrapper: Vec<String>,
        pulling: &'a (dyn Fn() + Sync),
    ) -> BoxFuture<'a, Result<Box<dyn SandboxPod>, Reason>>;

    /// The content of the image, if the image had a pod.
    fn content(&self, image: &ImageKey) -> Option<ImageContent>;

    /// Receives each image whose tag has moved.
    fn changes(&self) -> broadcast::Receiver<ImageKey>;

    /// Asks the registry whether the image's tag has moved. If so, gets the image again.
    fn revalidate(&self, image: ImageKey) -> BoxFuture<'static, ()>;

    /// The highest tag of the image that fits the constraint.
    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, ResolveError>>;
}

/// A pod that does not run yet.
pub trait SandboxPod: Send {
    /// The content of its image.
    fn content(&self) -> Option<ImageContent>;

    /// Runs the pod until it ends, and passes its socket to `listening`. Dropping the sender of
    /// `stopped` stops it, and the result is `None`. If it ends by itself, the result is the reason.
    fn run<'a>(
        self: Box<Self>,
        stopped: &'a mut oneshot::Receiver<Infallible>,
        listening: &'a (dyn Fn(PathBuf) + Sync),
    ) -> BoxFuture<'a, Option<Reason>>;
}
