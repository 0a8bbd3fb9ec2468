//! Follows the pods and Services of all runners.
//!
//! After any error the watch begins anew with a list, so that nothing is missed for good; kube's watcher alone would
//! resume where it was and never say that it is complete again.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::runtime::watcher::{self, watcher};
use porch_fn_pool::{Event, Uid};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::client::Cluster;
use super::names;
use super::store::Store;

/// How long one watch request lasts: a connection that died in silence is noticed about then.
const WATCH_SECONDS: u32 = 60;
/// How long a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// Takes what a watch shows.
trait Sink<K> {
    fn seen(&mut self, object: K);
    fn gone(&mut self, object: K);
    fn listed(&mut self, objects: Vec<K>);
    /// Something may have been missed; a list follows.
    fn lost(&mut self);
}

/// Follows pods for ever and tells `events`; `synced` turns true at the first list.
pub(super) async fn pods(
    cluster: Cluster,
    store: &Store,
    events: mpsc::UnboundedSender<Event>,
    synced: watch::Sender<bool>,
) {
    follow(&cluster.pods, "pods", &mut Pods { store, events, synced }).await;
}

/// Follows Services for ever.
pub(super) async fn services(cluster: Cluster, store: &Store) {
    follow(&cluster.services, "services", &mut Services { store }).await;
}

async fn follow<K>(api: &Api<K>, what: &'static str, sink: &mut impl Sink<K>)
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
    let config = watcher::Config::default().labels(&ours).timeout(WATCH_SECONDS);
    let mut pause = FIRST_PAUSE;
    let mut failing = false;
    loop {
        let mut stream = std::pin::pin!(watcher(api.clone(), config.clone()));
        let mut list = Some(Vec::new());
        let error = loop {
            // A list is not bounded by anything else.
            let limit = if list.is_some() { LIST_TIMEOUT } else { Duration::MAX };
            let Ok(Some(event)) = timeout(limit, stream.next()).await else { break "no list in time".to_owned() };
            match event {
                Ok(watcher::Event::Apply(object)) => sink.seen(object),
                Ok(watcher::Event::Delete(object)) => sink.gone(object),
                Ok(watcher::Event::Init) => list = Some(Vec::new()),
                Ok(watcher::Event::InitApply(object)) => list.get_or_insert_default().push(object),
                Ok(watcher::Event::InitDone) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(what, "the watch is back");
                    }
                    pause = FIRST_PAUSE;
                    sink.listed(list.take().unwrap_or_default());
                }
                Err(error) => break error.to_string(),
            }
        };
        if failing {
            tracing::debug!(what, error, "the watch is still broken");
        } else {
            tracing::warn!(what, error, "the watch broke; warm pods go on serving");
            failing = true;
        }
        sink.lost();
        // Up to a half more, so that runners do not come back in step.
        sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

struct Pods<'a> {
    store: &'a Store,
    events: mpsc::UnboundedSender<Event>,
    synced: watch::Sender<bool>,
}

impl Pods<'_> {
    fn tell(&self, event: Option<Event>) {
        if let Some(event) = event {
            // A driver that is gone needs no events.
            let _ = self.events.send(event);
        }
    }
}

impl Sink<Pod> for Pods<'_> {
    fn seen(&mut self, pod: Pod) {
        self.tell(self.store.pod_seen(&pod));
    }

    fn gone(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.as_deref().map(Uid::from);
        self.tell(uid.map(|uid| self.store.pod_gone(&uid)));
    }

    fn listed(&mut self, pods: Vec<Pod>) {
        tracing::debug!(pods = pods.len(), "pods listed");
        self.tell(Some(self.store.pods_listed(&pods)));
        self.synced.send_replace(true);
    }

    fn lost(&mut self) {
        self.tell(Some(Event::WatchLost));
    }
}

struct Services<'a> {
    store: &'a Store,
}

impl Sink<Service> for Services<'_> {
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
