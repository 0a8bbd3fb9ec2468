//! Probes pods, and asks the API server whether they still exist, because the watch may be late or
//! lose its connection without an error.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use porch_fn_backoff::Backoff;
use porch_fn_pool::{Event, PodName, Reason, Uid};
use tokio::time::{sleep, timeout};

use super::backend::KubernetesBackend;
use super::client::{Causes, RequestError};
use super::store::Connect;
use crate::pods::probe::{INTERVAL, until_serving};

/// During a probe, the runner also asks the API server whether the pod still exists. The pause
/// between these requests doubles.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(8);
/// Before a probe of a pod that has served, the runner may ask the API server whether the pod still
/// exists. It waits this long for the answer.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// The pause before each request that asks the API server whether a terminating pod is gone. A pod
/// without calls is usually gone before the first request.
const ENDING_LOOK: Duration = Duration::from_secs(4);
/// How often the Service of a probed pod is checked.
const SERVICE_LOOK: Duration = Duration::from_secs(5);

impl KubernetesBackend {
    /// Probes the pod until it serves, is gone, or its Service cannot be created.
    pub(super) async fn probe(&self, uid: Uid, name: &PodName) -> Option<Event> {
        let object_name = self.object_name(&uid, name)?;
        tokio::select! {
            () = self.until_serving(&object_name, &uid) => {
                self.store.record_served(&uid);
                Some(Event::Ready(uid))
            }
            () = self.look_after(&object_name, &uid) => None,
            reason = self.keep_service(&object_name, &uid) => Some(Event::Failed { uid, reason }),
        }
    }

    async fn until_serving(&self, object_name: &str, uid: &Uid) {
        // Another pod may have this pod's IP by now. So ask the API server first whether this pod
        // still exists.
        if self.store.connect == Connect::PodIp && self.store.has_served(uid) {
            let _ = timeout(CONFIRM_WITHIN, self.is_gone(object_name, uid)).await;
        }
        let direct = async {
            loop {
                until_serving(|| self.store.locate_directly(uid)).await;
                if self.store.use_direct(uid) {
                    return;
                }
                // The pod's Service is not known yet.
                sleep(INTERVAL).await;
            }
        };
        // A pod that has served may be gone, and another pod may have its address. Its Service
        // leads only to the pod itself.
        let may_race = self.store.connect != Connect::PodIp && !self.store.has_served(uid);
        tokio::select! {
            () = until_serving(|| self.store.locate(uid)) => {}
            () = direct, if may_race => {}
        }
    }

    /// Asks the API server for the pod repeatedly, and returns when the pod is gone.
    async fn look_after(&self, object_name: &str, uid: &Uid) {
        let mut backoff = Backoff::new(FIRST_LOOK, LAST_LOOK);
        if !self.store.has_served(uid) {
            sleep(backoff.next_pause()).await;
        }
        while !self.is_gone(object_name, uid).await {
            sleep(backoff.next_pause()).await;
        }
    }

    /// Asks the API server, forever, for pods that should be gone. Until the runner knows that such
    /// a pod is gone, no new pod can have its name, and callers wait.
    pub(crate) async fn look_after_ending(self: Arc<Self>) {
        loop {
            sleep(ENDING_LOOK).await;
            let ending = self.store.ending_for(ENDING_LOOK);
            join_all(ending.iter().map(|(uid, object_name)| self.is_gone(object_name, uid))).await;
        }
    }

    /// Asks the API server for the pod, because the store may be late. Returns `false` also if the
    /// API server does not answer.
    async fn is_gone(&self, object_name: &str, uid: &Uid) -> bool {
        self.record_answer(self.cluster.look_at_pod(object_name).await, uid)
    }

    /// Records an answer about the pod. Returns whether the pod is gone.
    pub(super) fn record_answer(&self, found: Result<Option<Pod>, RequestError>, uid: &Uid) -> bool {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %Causes(&error), "cannot read the pod");
                return false;
            }
        };
        let is_there = found.as_ref().is_some_and(|pod| pod.metadata.uid.as_deref() == Some(uid.as_str()));
        if !is_there {
            self.store.remove_pod(uid);
        }
        // This may also be a newer pod with the same name.
        if let Some(pod) = &found {
            self.store.record_pod(pod);
        }
        !is_there
    }

    /// Returns only if the Service is missing and cannot be created.
    async fn keep_service(&self, object_name: &str, uid: &Uid) -> Reason {
        if self.store.connect == Connect::PodIp {
            return std::future::pending().await;
        }
        loop {
            let blueprint = self.current_blueprint().await;
            // Without a template no Service can be created, but the pod may already have one.
            if let Some(service) = blueprint.service(object_name, uid)
                && let Err(reason) = self.ensure_service(object_name, uid, &service).await
            {
                return reason;
            }
            sleep(SERVICE_LOOK).await;
        }
    }
}
