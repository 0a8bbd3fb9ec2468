//! Follows the pods and Services of all runners.
//!
//! After any error the watch begins anew with a list, so that nothing is missed for good; kube's watcher alone would
//! resume where it was and never say that it is complete again.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Service};
use kube::Api;
use kube::runtime::watcher::{self, watcher};
use porch_fn_pool::{Event, Uid};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::client::{Causes, Cluster, WATCH_SECONDS};
use super::names;
use super::store::Store;

/// How long one page of a list may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// A watch that lived for so long has worked.
const LIVED: Duration = Duration::from_secs(10);

/// Takes what a watch shows.
trait Sink<K> {
    /// Takes away what is not needed: lists are held whole.
    fn trim(object: &mut K);
    fn seen(&mut self, object: K);
    fn gone(&mut self, object: K);
    fn listed(&mut self, objects: Vec<K>);
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
    let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
    let config = watcher::Config::default().labels(&ours).timeout(WATCH_SECONDS);
    let mut pause = FIRST_PAUSE;
    let mut failing = false;
    loop {
        let mut listed_at = None;
        let error = until_error(api, &config, &mut sink, &mut listed_at).await;
        sink.lost();
        if listed_at.is_some_and(|at: Instant| at.elapsed() > LIVED) {
            (pause, failing) = (FIRST_PAUSE, false);
        }
        if failing {
            tracing::debug!(what, error, "the watch is still broken");
        } else {
            tracing::warn!(what, error, "the watch broke; warm pods go on serving");
            failing = true;
        }
        // Up to a half more, so that runners do not come back in step.
        sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// One list and the watch after it.
async fn until_error<K, S>(
    api: &Api<K>,
    config: &watcher::Config,
    sink: &mut S,
    listed_at: &mut Option<Instant>,
) -> String
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    S: Sink<K>,
{
    let mut stream = std::pin::pin!(watcher(api.clone(), config.clone()));
    let mut list = Some(Vec::new());
    loop {
        // A watch is bounded by its own timeout and the client's, a list by nothing else.
        let limit = if list.is_some() { PAGE_TIMEOUT } else { Duration::MAX };
        let Ok(Some(event)) = timeout(limit, stream.next()).await else {
            return "no list in time".to_owned();
        };
        match event {
            Ok(watcher::Event::Apply(object)) => sink.seen(object),
            Ok(watcher::Event::Delete(object)) => sink.gone(object),
            Ok(watcher::Event::Init) => list = Some(Vec::new()),
            Ok(watcher::Event::InitApply(mut object)) => {
                S::trim(&mut object);
                list.get_or_insert_default().push(object);
            }
            Ok(watcher::Event::InitDone) => {
                let list = list.take().unwrap_or_default();
                tracing::debug!(objects = list.len(), "listed");
                sink.listed(list);
                *listed_at = Some(Instant::now());
            }
            Err(error) => return Causes(&error).to_string(),
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

    fn seen(&mut self, pod: Pod) {
        self.store.pod_seen(&pod);
    }

    fn gone(&mut self, pod: Pod) {
        if let Some(uid) = pod.metadata.uid.as_deref() {
            self.store.pod_gone(&Uid::from(uid));
        }
    }

    fn listed(&mut self, pods: Vec<Pod>) {
        self.store.pods_listed(&pods);
        self.synced.send_replace(true);
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

    fn seen(&mut self, service: Service) {
        self.store.service_seen(&service);
    }

    fn gone(&mut self, service: Service) {
        self.store.service_gone(&service);
    }

    fn listed(&mut self, services: Vec<Service>) {
        self.store.services_listed(&services);
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
