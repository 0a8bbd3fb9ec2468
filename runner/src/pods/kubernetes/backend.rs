//! One runner's way to the pods of the cluster: carries out orders, each in a task of its own, and probes pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use porch_fn_pool::{
    Creation, Deletion, Event, PodName, Pushing, Reason, ResourceVersion, ShardKey, Time, Uid,
};
use porch_fn_service::conn::Connection;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Instrument;

use super::blueprint::{Blueprint, PodOrder};
use super::client::{Cluster, RequestError};
use super::metadata::MetadataSource;
use super::observe::{Observed, Tries, observe};
use super::services;
use super::spec::object_name;
use super::store::{Connect, Store};
use super::times::format_time;
use crate::pods::backend::{Backend, Order};
use crate::pods::probe::{Locate, Probes, until_serving};

/// Writes to the API server at once.
const MAX_WRITES: usize = 32;
/// Creates of one order: a busy API server puts off, and a holder of the name may be gone when it is looked at.
const CREATE_ATTEMPTS: u32 = 5;
/// Before the second of them; each further pause is longer by as much.
const CREATE_PAUSE: Duration = Duration::from_millis(100);
/// How long after a probe's start, and then how often, the API server is asked whether the pod still exists: the watch
/// may be cut without anybody noticing.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(8);

/// A [`Backend`] over the pods of one namespace.
pub(crate) struct KubernetesBackend {
    shared: Arc<Shared>,
    probes: Probes,
    writes: Mutex<JoinSet<()>>,
}

/// What the tasks need.
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    pub(super) store: Store,
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) blueprint: watch::Receiver<Arc<Blueprint>>,
    pub(super) metadata: Arc<dyn MetadataSource>,
    pub(super) writes: Semaphore,
}

impl KubernetesBackend {
    pub(super) fn new(
        cluster: Cluster,
        connect: Connect,
        events: mpsc::UnboundedSender<Event>,
        blueprint: watch::Receiver<Arc<Blueprint>>,
        metadata: Arc<dyn MetadataSource>,
    ) -> Self {
        let shared = Shared {
            cluster,
            store: Store::new(connect),
            events,
            blueprint,
            metadata,
            writes: Semaphore::new(MAX_WRITES),
        };
        Self { shared: Arc::new(shared), probes: Probes::default(), writes: Mutex::default() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs `write` when it is its turn, and tells the pool what came of it.
    fn write(&self, name: &PodName, write: impl Future<Output = Event> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            // The semaphore is never closed.
            let _turn = shared.writes.acquire().await;
            shared.tell(write.await);
        };
        let mut writes = self.writes.lock();
        while writes.try_join_next().is_some() {}
        writes.spawn(task.instrument(tracing::info_span!("pod", image = %name.image, slot = name.slot)));
    }
}

impl Backend for KubernetesBackend {
    fn order(&self, order: Order) {
        let shared = Arc::clone(&self.shared);
        match order {
            // The version is the blueprint's: the pool may not have heard of the newest yet.
            Order::Create { name, shard_key, reclaim_after, .. } => self.write(&name.clone(), async move {
                let result = shared.create(&name, &shard_key, reclaim_after).await;
                if let Creation::Refused(reason) = &result {
                    tracing::warn!(%reason, "no pod can be created");
                }
                Event::Created { name, result }
            }),
            Order::Delete { uid, resource_version, name } => self.write(&name.clone(), async move {
                let result = shared.delete(&name, &uid, &resource_version).await;
                Event::Deleted { uid, result }
            }),
            Order::Push { uid, resource_version, name, until } => self.write(&name.clone(), async move {
                let result = shared.push(&name, &uid, &resource_version, until).await;
                Event::Pushed { uid, result }
            }),
            Order::Probe { uid, name, on: true } => {
                self.probes.start(uid.clone(), async move { shared.probe(&uid, &name).await });
            }
            Order::Probe { uid, on: false, .. } => self.probes.stop(&uid),
        }
    }

    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.shared.store.locate(uid).ok()?
    }
}

// === impl Shared ===

impl Shared {
    /// A driver that is gone needs no events.
    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    async fn create(&self, name: &PodName, shard_key: &ShardKey, reclaim_after: Time) -> Creation {
        let Some(object_name) = object_name(name) else {
            return refused("no pod can be named after the image reference");
        };
        let metadata = match self.metadata.metadata(&name.image).await {
            Ok(metadata) => metadata,
            Err(error) => return refused(error.to_string()),
        };
        let order = PodOrder {
            object_name: &object_name,
            namespace: &self.cluster.namespace,
            name,
            shard_key,
            reclaim_after,
            entrypoint: &metadata.entrypoint,
        };
        let blueprint = Arc::clone(&self.blueprint.borrow());
        let pod = match blueprint.pod(&order) {
            Ok(pod) => pod,
            Err(reason) => return refused(reason),
        };
        for attempt in 0..CREATE_ATTEMPTS {
            sleep(CREATE_PAUSE * attempt).await;
            let error = match self.cluster.create_pod(&pod).await {
                Ok(created) => return self.created(&created),
                Err(error) => error,
            };
            match error.creation() {
                Creation::Exists => match self.holder(&object_name, name).await {
                    Holder::Ours => return Creation::Exists,
                    Holder::Foreign => {
                        tracing::warn!(pod = object_name, "another's pod holds the name of a function pod");
                        return Creation::Refused(Reason::NameTaken);
                    }
                    Holder::Gone | Holder::Unknown => {}
                },
                // Done or not, the next attempt shows it: the name is taken then.
                Creation::Unknown if error.code().is_some() => {
                    tracing::debug!(pod = object_name, %error, "create again");
                }
                answer => {
                    tracing::warn!(pod = object_name, %error, "pod not created");
                    return answer;
                }
            }
        }
        Creation::Unknown
    }

    fn created(&self, pod: &Pod) -> Creation {
        let Some(Observed { pod: observed, .. }) = observe(pod, &mut Tries::default()) else {
            return refused("an admission webhook took away the labels or annotations of function pods");
        };
        // The store is to know it before the pool asks for it. If it knows more, so does the pool.
        let _ = self.store.pod_seen(pod);
        Creation::Ok(observed)
    }

    /// Whose pod has the name.
    async fn holder(&self, object_name: &str, name: &PodName) -> Holder {
        match self.cluster.get_pod(object_name).await {
            Ok(Some(pod)) => match observe(&pod, &mut Tries::default()) {
                Some(Observed { pod, .. }) if pod.name.image == name.image => Holder::Ours,
                _ => Holder::Foreign,
            },
            Ok(None) => Holder::Gone,
            Err(_) => Holder::Unknown,
        }
    }

    async fn delete(&self, name: &PodName, uid: &Uid, judged: &ResourceVersion) -> Deletion {
        let Some(object_name) = object_name(name) else { return Deletion::NotFound };
        match self.cluster.delete_pod(&object_name, uid.as_str(), judged.as_str()).await {
            Ok(()) => Deletion::Ok,
            Err(error) => {
                log_refusal(&object_name, &error, "pod not deleted");
                error.deletion()
            }
        }
    }

    async fn push(&self, name: &PodName, uid: &Uid, judged: &ResourceVersion, until: Time) -> Pushing {
        let Some(object_name) = object_name(name) else { return Pushing::Gone };
        let until = format_time(until);
        match self.cluster.push_pod(&object_name, uid.as_str(), judged.as_str(), &until).await {
            Ok(pod) => match observe(&pod, &mut Tries::default()) {
                Some(observed) => {
                    let _ = self.store.pod_seen(&pod);
                    Pushing::Ok(observed.pod)
                }
                None => Pushing::Gone,
            },
            Err(error) => {
                log_refusal(&object_name, &error, "reclaim-after not written");
                error.pushing()
            }
        }
    }

    /// Until the pod serves, is gone, or cannot be reached by a Service.
    async fn probe(&self, uid: &Uid, name: &PodName) {
        let Some(object_name) = object_name(name) else { return };
        let refused = tokio::select! {
            served = until_serving(&self.store, uid) => {
                if served.is_ok() {
                    self.store.served(uid);
                    self.tell(Event::Ready { uid: uid.clone() });
                }
                return;
            }
            () = self.look_after(&object_name, uid) => return,
            refused = self.ensure_service(&object_name, uid) => refused,
        };
        self.tell(Event::Failed { uid: uid.clone(), reason: refused });
    }

    /// Asks the API server for the pod now and then; ends when it is gone.
    async fn look_after(&self, object_name: &str, uid: &Uid) {
        let mut pause = if self.store.has_served(uid) { Duration::ZERO } else { FIRST_LOOK };
        loop {
            sleep(pause).await;
            pause = (pause * 2).clamp(FIRST_LOOK, LAST_LOOK);
            match self.cluster.get_pod(object_name).await {
                Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(uid.as_str()) => {
                    if let Some(seen) = self.store.pod_seen(&pod) {
                        self.tell(seen);
                    }
                }
                Ok(_) => return self.tell(self.store.pod_gone(uid)),
                Err(error) => tracing::debug!(%error, "cannot look after the pod"),
            }
        }
    }

    /// Never ends once the Service is there.
    async fn ensure_service(&self, object_name: &str, uid: &Uid) -> Reason {
        if *self.store.connect() == Connect::PodIp {
            return std::future::pending().await;
        }
        let blueprint = Arc::clone(&self.blueprint.borrow());
        let Some(service) = blueprint.service(object_name, uid, &self.cluster.namespace) else {
            // Nothing can be made without a template; the pod may have its Service already.
            return std::future::pending().await;
        };
        match services::ensure(&self.cluster, &self.store, object_name, uid, &service).await {
            Ok(()) => std::future::pending().await,
            Err(reason) => reason,
        }
    }
}

/// Whose pod has a name.
enum Holder {
    Ours,
    Foreign,
    Gone,
    Unknown,
}

fn refused(reason: impl Into<Arc<str>>) -> Creation {
    Creation::Refused(Reason::Other(reason.into()))
}

/// Conflicts and vanished pods are everyday; the rest is for the operator.
fn log_refusal(object_name: &str, error: &RequestError, message: &str) {
    match error.code() {
        Some(404 | 409) => tracing::debug!(pod = object_name, %error, "{message}"),
        _ => tracing::warn!(pod = object_name, %error, "{message}"),
    }
}
