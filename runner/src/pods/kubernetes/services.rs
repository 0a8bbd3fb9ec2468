//! The Service in front of each pod. The pod is created first and owns the Service, so Kubernetes
//! deletes the Service with the pod. Every delete names a UID, so a late delete cannot remove the
//! Service of a new pod with the same name.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use porch_fn_backoff::Backoff;
use porch_fn_pool::{Creation, Reason, Uid};
use tokio::time::{sleep, timeout};

use super::answers::creation;
use super::backend::KubernetesBackend;
use super::client::{Causes, RequestError};
use super::names::is_ours;

/// The pause between attempts doubles, from the first to the last of these.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// How long a probe waits for the first list of Services.
const LISTED_WITHIN: Duration = Duration::from_secs(2);
/// These texts reach callers.
const NAME_TAKEN: &str = "a Service that this runner does not manage has the name of the function's Service: \
                          remove it from the function namespace";
const MAY_NOT_DELETE: &str = "the Service of an earlier pod has the name of the function's Service, and the \
                              runner may not delete that Service: grant the runner's service account the \
                              Role of the deployment manifests in the function namespace";

impl KubernetesBackend {
    /// Creates `service` unless it exists. Retries until the Service exists or the API server
    /// refuses it.
    pub(super) async fn ensure_service(
        &self,
        name: &str,
        pod: &Uid,
        service: &Service,
    ) -> Result<(), Reason> {
        // Before the first list, the store does not know whether the Service already exists.
        let _ = timeout(LISTED_WITHIN, self.store.services_known()).await;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let known = self.store.service(name);
            if known.as_ref().is_some_and(|known| known.belongs_to(pod)) {
                return Ok(());
            }
            let is_free = match known {
                Some(known) => self.may_replace_service(name, pod, &known.uid).await?,
                None => true,
            };
            if is_free {
                match self.cluster.create_service(service).await {
                    Ok(created) => {
                        self.store.record_service(&created);
                        continue;
                    }
                    Err(error) => self.judge_failure(name, &error).await?,
                }
            }
            sleep(backoff.next_pause()).await;
        }
    }

    /// Deletes `service`, which belongs to another pod, if `pod` is the current pod with this name.
    /// Returns whether the Service of `pod` may now be created.
    async fn may_replace_service(&self, name: &str, pod: &Uid, service: &str) -> Result<bool, Reason> {
        // Only the API server knows which of the two pods is the current one. The watch of pods may
        // be interrupted while the watch of Services works.
        match self.cluster.get_pod(name).await {
            Ok(Some(holder)) if holder.metadata.uid.as_deref() == Some(pod.as_str()) => {}
            // The API server does not answer, or `pod` is gone and its probe will notice that.
            Ok(_) | Err(_) => return Ok(false),
        }
        match self.cluster.delete_service(name, service).await {
            Err(error) if error.code() == Some(403) => {
                tracing::warn!(service = name, error = %Causes(&error), "an old Service was not deleted");
                return Err(Reason::new("other", MAY_NOT_DELETE));
            }
            Err(error) if error.code() != Some(404) => {
                tracing::debug!(service = name, error = %Causes(&error), "an old Service was not deleted");
            }
            _ => self.store.remove_service(name, service),
        }
        Ok(true)
    }

    /// Returns an error in two cases: the API server refused the create and no Service was found,
    /// or a Service that no runner manages has the name. Any other failure may be temporary.
    async fn judge_failure(&self, name: &str, error: &RequestError) -> Result<(), Reason> {
        let refused = match creation(error) {
            Creation::Refused(reason) | Creation::OverQuota(reason) => Some(reason),
            Creation::Exists => None,
            Creation::Ok(_) | Creation::Unknown | Creation::Unreachable => {
                tracing::debug!(service = name, error = %Causes(error), "a Service was not created");
                return Ok(());
            }
        };
        // The Service may exist although the create was refused: quotas and permissions are checked
        // before the name.
        match (self.cluster.get_service(name).await, refused) {
            (Ok(Some(holder)), _) if !is_ours(&holder.metadata) => Err(Reason::new("other", NAME_TAKEN)),
            (Ok(Some(holder)), _) => {
                self.store.record_service(&holder);
                Ok(())
            }
            (_, Some(reason)) => {
                tracing::warn!(service = name, error = %Causes(error), "the API server refused a Service");
                Err(reason)
            }
            (_, None) => Ok(()),
        }
    }
}
