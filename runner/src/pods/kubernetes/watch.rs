//! Follows the pods and Services of all runners.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Service};
use kube::Api;
use porch_fn_kubernetes::{Change, FollowError, Follower, Page, Restarts, Selection};
use porch_fn_pool::{Event, Uid};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;

use super::client::{Causes, Cluster};
use super::names;
use super::store::Store;

/// How pods and Services are listed.
const PAGE: Page = Page { limit: Some(500), timeout: Duration::from_secs(30) };

/// Takes the changes of a watch.
trait Sink<K> {
    /// Removes what is not needed: lists are held whole.
    fn trim(object: &mut K);
    fn take(&mut self, change: Change<K>);
    /// Something may have been missed; a list follows.
    fn lost(&mut self);
}

/// Follows pods for ever; `synced` turns true at the first list.
pub(super) async fn pods(cluster: &Cluster, store: &Store, synced: watch::Sender<bool>) {
    follow(cluster.pods(), "pods", Pods { store, synced }).await;
}

/// Follows Services for ever.
pub(super) async fn services(cluster: &Cluster, store: &Store) {
    follow(cluster.services(), "services", Services { store }).await;
}

async fn follow<K, S>(api: &Api<K>, what: &'static str, mut sink: S)
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    S: Sink<K>,
{
    let selection =
        Selection { labels: Some(format!("{}={}", names::MANAGED_BY, names::MANAGER)), fields: None };
    let mut backoff = Restarts::default();
    loop {
        let mut follower = Follower::new(api.clone(), selection.clone(), PAGE, S::trim);
        let error = until_error(&mut follower, &mut sink).await;
        sink.lost();
        let error = Causes(&error).to_string();
        let pause = backoff.after(follower.listed_for());
        if backoff.failures() > 1 {
            tracing::debug!(what, error, "the watch is still broken");
        } else {
            tracing::warn!(what, error, "the watch broke; warm pods go on serving");
        }
        sleep(pause).await;
    }
}

async fn until_error<K, S>(follower: &mut Follower<K>, sink: &mut S) -> FollowError
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    S: Sink<K>,
{
    loop {
        match follower.next().await {
            Ok(change) => sink.take(change),
            Err(error) => return error,
        }
    }
}

struct Pods<'a> {
    store: &'a Store,
    synced: watch::Sender<bool>,
}

impl Sink<Pod> for Pods<'_> {
    fn trim(pod: &mut Pod) {
        // All of it that `crash` asks for.
        pod.spec = pod
            .spec
            .take()
            .map(|spec| PodSpec { image_pull_secrets: spec.image_pull_secrets, ..PodSpec::default() });
        pod.metadata.managed_fields = None;
    }

    fn take(&mut self, change: Change<Pod>) {
        match change {
            Change::Applied(pod) => self.store.pod_seen(&pod),
            Change::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid.as_deref() {
                    self.store.pod_gone(&Uid::from(uid));
                }
            }
            Change::Listed(pods) => {
                self.store.pods_listed(&pods);
                self.synced.send_replace(true);
            }
        }
    }

    fn lost(&mut self) {
        self.store.tell(Event::WatchLost);
    }
}

struct Services<'a> {
    store: &'a Store,
}

impl Sink<Service> for Services<'_> {
    fn trim(service: &mut Service) {
        service.metadata.managed_fields = None;
    }

    fn take(&mut self, change: Change<Service>) {
        match change {
            Change::Applied(service) => self.store.service_seen(&service),
            Change::Deleted(service) => self.store.service_gone(&service),
            Change::Listed(services) => self.store.services_listed(&services),
        }
    }

    fn lost(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::observe::{Tries, observe};
    use super::*;
    use porch_fn_pool::Phase;
    use serde_json::json;

    /// A runner that lists a pod judges it as one that saw each of its changes.
    #[test]
    fn a_listed_pod_is_what_a_watched_one_is() {
        let status = json!({"phase": "Pending", "containerStatuses": [{
            "name": names::CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "401 Unauthorized"}},
        }]});
        for secrets in [json!([]), json!([{"name": "auth"}])] {
            let watched: Pod = serde_json::from_value(json!({
                "metadata": {
                    "name": "f", "uid": "u", "resourceVersion": "1",
                    "labels": {names::MANAGED_BY: names::MANAGER},
                    "annotations": {names::IMAGE_REFERENCE: "r.io/f:v1", names::SLOT: "0"},
                },
                "spec": {"containers": [{"name": names::CONTAINER}], "imagePullSecrets": secrets},
                "status": status,
            }))
            .unwrap();
            let mut listed = watched.clone();
            Pods::trim(&mut listed);
            let observed = |pod: &Pod| observe(pod, &mut Tries::default()).unwrap();
            assert_eq!(observed(&listed), observed(&watched), "{secrets}");
            let has_another_try = matches!(observed(&listed).pod.phase, Phase::Pending(_));
            assert_eq!(has_another_try, secrets != json!([]));
            assert_eq!(listed.spec.map_or(0, |spec| spec.containers.len()), 0, "the rest is not kept");
        }
    }
}
