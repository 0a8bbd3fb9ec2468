//! The Service before each pod: made after its pod and owned by it, so that a late delete cannot hit the Service of a
//! pod that took over the name.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use porch_fn_pool::{Creation, Reason, Uid};

use super::client::{Cluster, RequestError};
use super::store::Store;

/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);
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
    let mut pause = FIRST_PAUSE;
    loop {
        match store.service(name) {
            Some(known) if known.belongs_to(pod) => return Ok(()),
            // It stands before a pod that had the name earlier.
            Some(known) => match cluster.delete_service(name, &known.uid).await {
                Ok(()) => store.service_forgotten(name, &known.uid),
                Err(error) if error.code() == Some(404) => store.service_forgotten(name, &known.uid),
                Err(error) => tracing::debug!(service = name, %error, "old Service not deleted"),
            },
            None => {}
        }
        match cluster.create_service(service).await {
            Ok(created) => {
                store.service_seen(&created);
                continue;
            }
            Err(error) => match error.creation() {
                Creation::Refused(reason) => {
                    tracing::warn!(service = name, %error, "Service refused");
                    return Err(reason);
                }
                Creation::Exists => match cluster.get_service(name).await {
                    Ok(Some(holder)) if !is_ours(&holder) => return Err(Reason::NameTaken),
                    Ok(Some(holder)) => store.service_seen(&holder),
                    Ok(None) | Err(_) => {}
                },
                Creation::Ok(_) | Creation::Unknown => {
                    tracing::debug!(service = name, %error, "Service not created");
                }
            },
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
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
            Err(error) => tracing::warn!(service = name, %error, "a Service without a pod was not deleted"),
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
