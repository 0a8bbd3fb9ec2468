//! The Service before each pod: made after its pod and owned by it, so that a late delete cannot hit the Service of a
//! pod that took over the name.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use porch_fn_backoff::Backoff;
use porch_fn_pool::{Creation, Reason, Uid};
use tokio::time::{sleep, timeout};

use super::client::{Causes, Cluster, Outcome, RequestError};
use super::store::Store;

/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// How long to wait for the first list of Services.
const LISTED_WITHIN: Duration = Duration::from_secs(2);
/// Told to callers.
const NAME_TAKEN: &str = "a Service that this runner does not manage holds the name of the function's: remove it from the \
                          function namespace";
const MAY_NOT_DELETE: &str = "the Service of an earlier pod holds the name of the function's, and the runner may not delete it: grant \
                              its service account the Role of the deployment manifests in the function namespace";
/// A Service without a pod is left alone for so long: its pod may not have been seen yet.
const ORPHANED_FOR: i64 = 60;

/// Makes `service` unless it is there; repeats until it is, or until the API server refuses it.
pub(super) async fn ensure(
    cluster: &Cluster,
    store: &Store,
    name: &str,
    pod: &Uid,
    service: &Service,
) -> Result<(), Reason> {
    // It may well be there: what is not listed yet would be made in vain.
    let _ = timeout(LISTED_WITHIN, store.services_known()).await;
    let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    let mut told = false;
    let mut warn_once = |backoff: &Backoff, error: &RequestError| {
        if backoff.is_longest() && !told {
            tracing::warn!(service = name, error = %Causes(error), "Service not created after several attempts");
            told = true;
        }
    };
    loop {
        match store.service(name) {
            Some(known) if known.belongs_to(pod) => return Ok(()),
            Some(known) => match other_pods_service(cluster, store, name, pod, &known.uid).await {
                Ok(Whose::Earlier) => {}
                Ok(Whose::Later) => {
                    sleep(backoff.next_pause()).await;
                    continue;
                }
                Err(error) if error.code() == Some(403) => {
                    tracing::warn!(service = name, error = %Causes(&error), "old Service not deleted");
                    return Err(Reason::Other(MAY_NOT_DELETE.into()));
                }
                Err(error) => {
                    tracing::debug!(service = name, error = %Causes(&error), "old Service not deleted");
                }
            },
            None => {}
        }
        match cluster.create_service(service).await {
            Ok(created) => {
                store.service_seen(&created);
                continue;
            }
            Err(error) => {
                let refused = match error.creation() {
                    Creation::Refused(reason) | Creation::OverQuota(reason) => Some(reason),
                    Creation::Exists => None,
                    Creation::Ok(_) | Creation::Unknown | Creation::Unreachable => {
                        warn_once(&backoff, &error);
                        sleep(backoff.next_pause()).await;
                        continue;
                    }
                };
                // It may be there although it was refused: quotas and rights are asked before the name.
                match (cluster.get_service(name).await, refused) {
                    (Ok(Some(holder)), _) if !is_ours(&holder) => {
                        return Err(Reason::Other(NAME_TAKEN.into()));
                    }
                    (Ok(Some(holder)), _) => store.service_seen(&holder),
                    (_, Some(reason)) => {
                        tracing::warn!(service = name, error = %Causes(&error), "Service refused");
                        return Err(reason);
                    }
                    (Ok(None), None) => {}
                    // Somebody's, and nobody says whose.
                    (Err(error), None) => warn_once(&backoff, &error),
                }
            }
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Whose a Service is that stands before another pod of the same name.
enum Whose {
    /// One that had the name before ours, which nobody needs any more. It is deleted now.
    Earlier,
    /// One that has the name now, or nobody knows. Ours is gone then, which whoever looks after it finds out.
    Later,
}

/// Only the API server knows which pod came first: the watch of pods may be cut while that of Services is not.
async fn other_pods_service(
    cluster: &Cluster,
    store: &Store,
    name: &str,
    pod: &Uid,
    service: &str,
) -> Result<Whose, RequestError> {
    match cluster.get_pod(name).await {
        Ok(Some(holder)) if holder.metadata.uid.as_deref() == Some(pod.as_str()) => {}
        Ok(_) | Err(_) => return Ok(Whose::Later),
    }
    match cluster.delete_service(name, service).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => {
            store.service_forgotten(name, service);
            Ok(Whose::Earlier)
        }
    }
}

/// Deletes Services that lost their pod. Kubernetes does so by itself; this is the net under it.
pub(super) async fn collect_orphans(cluster: &Cluster, store: &Store, now: i64) {
    for (name, service) in store.orphaned_services(now - ORPHANED_FOR) {
        // Our view of the pods may be old: the API server has the last word.
        let orphaned = match (&service.owner, cluster.get_pod(&name).await) {
            (Some(owner), Ok(Some(pod))) => pod.metadata.uid.as_deref() != Some(owner.as_str()),
            (_, Ok(_)) => true,
            (_, Err(_)) => false,
        };
        if !orphaned {
            continue;
        }
        match cluster.delete_service(&name, &service.uid).await {
            Ok(()) => tracing::info!(service = name, "deleted a Service without a pod"),
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                tracing::warn!(service = name, error = %Causes(&error), "a Service without a pod was not deleted");
            }
        }
    }
}

fn is_gone(error: &RequestError) -> bool {
    matches!(error.code(), Some(404 | 409))
}

fn is_ours(service: &Service) -> bool {
    let labels = service.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(super::names::MANAGED_BY))
        .is_some_and(|by| by == super::names::MANAGER)
}
