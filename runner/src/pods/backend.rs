//! The interface between the pool and the place of its pods: a machine or a cluster.
//!
//! A backend executes actions, and sends events on the pool's channel when pods appear, change and
//! vanish, which also happens without an action. Several runners may act on the same pods: the
//! backend resolves conflicts, and the pool accepts the result.

use std::sync::Arc;

use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{Action, Event, Time, Uid};
use tonic::async_trait;

/// Runs pods on a machine or in a cluster.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Creates, deletes, pushes or probes a pod. Returns what the pool learns from it.
    async fn execute(&self, action: Action) -> Option<Event>;

    /// Closes the connection to a pod.
    fn disconnect(&self, uid: &Uid);

    /// Returns the connection to a pod's wrapper for a call; `None` if the pod is gone or has no
    /// address.
    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>>;

    /// Returns the connection for a health check.
    fn locate(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.connection(uid)
    }

    /// Returns the pod as people know it; `None` if the pod is gone.
    fn facts(&self, uid: &Uid) -> Option<PodFacts>;
}

/// A pod as people know it, for reports. Errors for callers contain none of this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// The pod's name.
    pub name: String,
    /// When it was created.
    pub created: Option<Time>,
    /// The cluster's own message about why the pod waits or failed, cut to a limit.
    pub cause: Option<String>,
}
