//! Follows the pods and Services of all runners.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Service};
use kube::Api;
use kube::api::ListParams;
use porch_fn_kubernetes::{Change, Follower, Restarts};
use porch_fn_pool::{Event, Uid};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;

use super::backend::KubernetesBackend;
use super::client::Causes;
use super::names;

/// Maximum number of pods or Services in one page of a list.
const PAGE: u32 = 500;
/// How long one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Watches pods forever. `synced` becomes true after the first list.
pub(crate) async fn pods(shared: Arc<KubernetesBackend>, synced: watch::Sender<bool>) {
    let store = &shared.store;
    let record = |change| match change {
        Some(Change::Applied(pod)) => drop(store.record_pod(&pod)),
        Some(Change::Deleted(Pod { metadata, .. })) => {
            metadata.uid.iter().for_each(|uid| store.remove_pod(&Uid::from(uid.as_str())));
        }
        Some(Change::Listed(pods)) => {
            store.replace_pods(&pods);
            synced.send_replace(true);
        }
        Some(Change::Expired) | None => store.send(Event::WatchLost),
    };
    follow(&shared.cluster.pods, "pods", trim_pod, record).await;
}

/// Watches Services forever.
pub(crate) async fn services(shared: Arc<KubernetesBackend>) {
    let store = &shared.store;
    let trim = |service: &mut Service| service.metadata.managed_fields = None;
    let record = |change: Option<Change<Service>>| match change {
        Some(Change::Applied(service)) => store.record_service(&service),
        Some(Change::Deleted(Service { metadata, .. })) => {
            if let (Some(name), Some(uid)) = (&metadata.name, &metadata.uid) {
                store.remove_service(name, uid);
            }
        }
        Some(Change::Listed(services)) => store.replace_services(&services),
        Some(Change::Expired) | None => {}
    };
    follow(&shared.cluster.services, "services", trim, record).await;
}

/// Follows the objects that runners manage, forever. `trim` removes fields that are not needed,
/// because whole lists are held in memory. `record` receives each change. It receives `None` when
/// the watch is interrupted: changes may then be missed, and a new list follows.
async fn follow<K>(
    api: &Api<K>,
    what: &'static str,
    trim: fn(&mut K),
    mut record: impl FnMut(Option<Change<K>>),
) where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER)).limit(PAGE);
    let mut backoff = Restarts::default();
    loop {
        let mut follower = Follower::new(api.clone(), ours.clone(), PAGE_TIMEOUT, trim);
        let error = loop {
            match follower.next().await {
                Ok(change) => record(Some(change)),
                Err(error) => break Causes(&error).to_string(),
            }
        };
        record(None);
        let pause = backoff.after(follower.listed_for());
        if backoff.failures() > 1 {
            tracing::debug!(resource = what, error, "the watch is still interrupted");
        } else {
            tracing::warn!(resource = what, error, "the watch was interrupted; warm pods still serve");
        }
        sleep(pause).await;
    }
}

fn trim_pod(pod: &mut Pod) {
    // `crash` needs the spec's pull secrets. Nothing else of the spec is needed.
    pod.spec = pod
        .spec
        .take()
        .map(|spec| PodSpec { image_pull_secrets: spec.image_pull_secrets, ..PodSpec::default() });
    pod.metadata.managed_fields = None;
}

#[cfg(test)]
mod tests {
    use porch_fn_pool::Phase;
    use serde_json::json;

    use super::super::crash::{History, phase};
    use super::super::fake::{pod, pod_waits};
    use super::*;

    /// A listed pod is trimmed. It must get the same phase as a watched pod.
    #[test]
    fn a_trimmed_pod_has_the_same_phase() {
        for secrets in [json!([]), json!([{"name": "auth"}])] {
            let status = pod_waits(names::CONTAINER, "ErrImagePull", "401 Unauthorized");
            let mut watched = pod("u", 1, &status);
            let spec = json!({"containers": [{"name": names::CONTAINER}], "imagePullSecrets": secrets});
            watched.spec = serde_json::from_value(spec).unwrap();
            let mut listed = watched.clone();
            trim_pod(&mut listed);
            let judged = |pod: &Pod| phase(pod, &mut History::default());
            assert_eq!(judged(&listed), judged(&watched), "{secrets}");
            let has_second_attempt = matches!(judged(&listed), Phase::Pending(_));
            assert_eq!(has_second_attempt, secrets != json!([]));
            assert_eq!(listed.spec.map_or(0, |spec| spec.containers.len()), 0, "containers are not kept");
        }
    }
}
