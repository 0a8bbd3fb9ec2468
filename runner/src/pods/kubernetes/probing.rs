//! Finds out whether a pod serves, and whether it is still there: the watch may be late, or cut without anybody
//! noticing.

use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use porch_fn_backoff::Backoff;
use porch_fn_pool::{Event, PodName, Reason, Uid};
use tokio::time::{sleep, timeout};

use super::backend::Shared;
use super::client::{Causes, RequestError};
use super::services;
use super::store::Connect;
use crate::pods::probe::until_serving;

/// How long after a probe's start, and then how often, the API server is asked whether the pod still exists: the watch
/// may be cut without anybody noticing.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(8);
/// How long a pod that once served is not trusted before the API server has said that it still exists.
const TRUST_AFTER: Duration = Duration::from_secs(1);
/// How long after a pod was heard to terminate, and then how often, the API server is asked whether it is gone. One that
/// runs no call is gone sooner.
const ENDING_LOOK: Duration = Duration::from_secs(4);
/// How often a Service that was there is looked for again.
const SERVICE_LOOK: Duration = Duration::from_secs(5);

/// What a look at a pod showed.
#[derive(PartialEq, Eq)]
pub(super) enum Look {
    /// Or nobody knows.
    There,
    Gone,
}

impl Shared {
    /// Until the pod serves, is gone, or cannot have its Service.
    pub(super) async fn probe(&self, uid: &Uid, name: &PodName) {
        let Some(object_name) = self.object_name(uid, name) else { return };
        let refused = tokio::select! {
            () = self.until_serving(&object_name, uid) => {
                self.store.served(uid);
                return self.store.tell(Event::Ready(uid.clone()));
            }
            () = self.look_after(&object_name, uid) => return,
            refused = self.ensure_service(&object_name, uid) => refused,
        };
        self.store.tell(Event::Failed { uid: uid.clone(), reason: refused });
    }

    async fn until_serving(&self, object_name: &str, uid: &Uid) {
        // Its address may be another pod's by now.
        if *self.store.connect() == Connect::PodIp && self.store.has_served(uid) {
            let _ = timeout(TRUST_AFTER, self.look(object_name, uid)).await;
        }
        until_serving(&self.store, uid).await;
    }

    /// Asks the API server for the pod now and then; ends when it is gone.
    async fn look_after(&self, object_name: &str, uid: &Uid) {
        let mut backoff = Backoff::new(FIRST_LOOK, LAST_LOOK);
        if !self.store.has_served(uid) {
            sleep(backoff.next_pause()).await;
        }
        while self.look(object_name, uid).await != Look::Gone {
            sleep(backoff.next_pause()).await;
        }
    }

    /// Asks the API server, for ever, for pods that should be gone by now: they hold their names until their end is
    /// heard of, and callers wait for these.
    pub(super) async fn look_after_ending(&self) {
        loop {
            sleep(ENDING_LOOK).await;
            let ending = self.store.ending_for(ENDING_LOOK);
            join_all(ending.iter().map(|(uid, object_name)| self.look(object_name, uid))).await;
        }
    }

    /// Asks the API server for the pod, since what is known of it may be old.
    pub(super) async fn look(&self, object_name: &str, uid: &Uid) -> Look {
        self.looked(self.cluster.look_at_pod(object_name).await, uid)
    }

    /// The same for a write that met a conflict: a call may wait for it.
    pub(super) async fn look_now(&self, object_name: &str, uid: &Uid) -> Look {
        self.looked(self.cluster.get_pod(object_name).await, uid)
    }

    fn looked(&self, found: Result<Option<Pod>, RequestError>, uid: &Uid) -> Look {
        match found {
            Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(uid.as_str()) => {
                self.store.pod_seen(&pod);
                Look::There
            }
            Ok(successor) => {
                self.store.pod_gone(uid);
                if let Some(successor) = successor {
                    self.store.pod_seen(&successor);
                }
                Look::Gone
            }
            Err(error) => {
                tracing::debug!(error = %Causes(&error), "cannot look after the pod");
                Look::There
            }
        }
    }

    /// Never ends while the Service is there or can be made.
    async fn ensure_service(&self, object_name: &str, uid: &Uid) -> Reason {
        if *self.store.connect() == Connect::PodIp {
            return std::future::pending().await;
        }
        loop {
            let blueprint = self.current_blueprint().await;
            // Nothing can be made without a template; the pod may have its Service already.
            if let Some(service) = blueprint.service(object_name, uid, self.cluster.namespace())
                && let Err(reason) =
                    services::ensure(&self.cluster, &self.store, object_name, uid, &service).await
            {
                return reason;
            }
            sleep(SERVICE_LOOK).await;
        }
    }
}
