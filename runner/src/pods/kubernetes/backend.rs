//! A runner's access to the pods of the cluster: executes the actions of the pool, and probes pods. `runner/pool/src/lib.rs` explains the pool's rules and terms, such as push and
//! reclaim-after.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{
    Action, Creation, DeleteReason, Event, PodName, Reason, ResourceVersion, ShardKey, Time, Uid,
    WriteOutcome,
};
use porch_fn_registry::RegistryError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::async_trait;

use super::announce::Announcements;
use super::answers::{creation, deletion, pushing, retry_after};
use super::blueprint::Blueprint;
use super::client::{Causes, Cluster, RequestError};
use super::names;
use super::spec::{PodOrder, object_name};
use super::store::Store;
use super::times::format_time;
use crate::pods::backend::{Backend, PodFacts};

/// Maximum number of attempts to create one pod. A later attempt can succeed if the API server was
/// busy, or if an old pod still had the name.
const CREATE_ATTEMPTS: u32 = 5;
/// The pause before the second attempt. Each further pause is longer by this much.
const CREATE_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for one create, with all its waits. The pool waits a minute for the result.
const CREATE_TIMEOUT: Duration = Duration::from_secs(50);
/// How long a create waits until new credentials are in the pull secret.
const PULL_SECRET_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a create waits for a template that has not been read yet.
const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(30);

/// This text reaches callers.
const NAME_TAKEN: &str = "a pod that this runner does not manage holds the name of the function's pod: remove it from the function \
                          namespace";
/// Log lines for failed writes.
const NOT_DELETED: &str = "a pod was not deleted";
const NOT_PUSHED: &str = "reclaim-after of a pod was not written";
/// Grace period of a failed pod, in seconds. It is short: the next pod needs the name, and a failed
/// pod has no calls to finish.
const FAILED_GRACE: u32 = 1;

/// A [`Backend`] over the pods of one namespace.
pub(crate) struct KubernetesBackend {
    pub(crate) cluster: Cluster,
    pub(crate) store: Arc<Store>,
    pub(crate) blueprint: watch::Receiver<Arc<Blueprint>>,
    /// False while new pods should wait for new credentials; `None` if there is no pull secret.
    pub(crate) pull_secret: Option<watch::Receiver<bool>>,
    /// The log lines of the kinds of writes that were refused since they last succeeded.
    pub(crate) refused: Mutex<HashSet<&'static str>>,
}

// === impl KubernetesBackend ===

#[async_trait]
impl Backend for KubernetesBackend {
    async fn execute(&self, action: Action) -> Option<Event> {
        Some(match action {
            // The action's `recipe` is ignored. The blueprint decides the pod's version, because
            // the pool may not know the newest version yet.
            Action::Create { name, shard_key, reclaim_after, .. } => {
                let result = self.create(&name, &shard_key, reclaim_after).await;
                match &result {
                    Creation::Refused(reason) => tracing::warn!(%reason, "no pod can be created"),
                    Creation::OverQuota(reason) => {
                        tracing::info!(%reason, "no pod can be created now: calls wait until the quota has room");
                    }
                    _ => {}
                }
                Event::Created { name, result }
            }
            Action::Delete { uid, resource_version, name, reason } => {
                let failed = reason == DeleteReason::Failed;
                let result = self.delete(&name, &uid, &resource_version, failed).await;
                Event::Deleted { uid, result }
            }
            Action::Push { uid, resource_version, name, until, place_wanted } => {
                let mut annotations = BTreeMap::from([(names::RECLAIM_AFTER, format_time(until))]);
                annotations.extend(place_wanted.map(|at| (names::PLACE_WANTED, format_time(at))));
                let result = self.push(&name, &uid, &resource_version, &annotations).await;
                Event::Pushed { uid, result }
            }
            Action::Probe { uid, name, .. } => return self.probe(uid, &name).await,
            _ => return None,
        })
    }

    fn disconnect(&self, uid: &Uid) {
        self.store.cut(uid);
    }

    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.store.connection(uid)
    }

    fn locate(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.store.locate(uid)
    }

    fn facts(&self, uid: &Uid) -> Option<PodFacts> {
        self.store.facts(uid)
    }
}

impl KubernetesBackend {
    async fn create(&self, name: &PodName, shard_key: &ShardKey, reclaim_after: Time) -> Creation {
        let Some(object_name) = object_name(name) else {
            return refused("invalid_image", "no pod can be named after the image reference");
        };
        let deadline = Instant::now() + CREATE_TIMEOUT;
        let metadata = timeout_at(deadline, self.store.images.metadata(&name.image)).await;
        let metadata = match metadata.unwrap_or(Err(RegistryError::Unreachable)) {
            Ok(metadata) => metadata,
            Err(error) => {
                let kind = if error == RegistryError::NotFound { "image_not_found" } else { "registry" };
                return refused(kind, error.to_string());
            }
        };
        let token =
            self.store.announcements.as_ref().and_then(|known| Some((known, Announcements::token()?)));
        let order = PodOrder {
            object_name: &object_name,
            name,
            shard_key,
            reclaim_after,
            metadata: &metadata,
            announce: token.as_ref().map(|(known, token)| (&*known.address, &**token)),
        };
        let _ = timeout_at(deadline, self.pull_secret_written()).await;
        let blueprint = timeout_at(deadline, self.current_blueprint()).await;
        let blueprint = blueprint.unwrap_or_else(|_| Arc::clone(&self.blueprint.borrow()));
        let pod = match blueprint.pod(&order) {
            Ok(pod) => pod,
            Err(error) => return refused("template", error.to_string()),
        };
        let created = timeout_at(deadline, self.create_pod(&pod, &object_name, name)).await;
        if let (Some((known, token)), Ok(Creation::Ok(uid))) = (token, &created) {
            known.expect(token, uid.clone());
        }
        created.unwrap_or(Creation::Unknown)
    }

    /// Waits up to [`PULL_SECRET_TIMEOUT`] for new credentials in the pull secret. After that, the
    /// pod is created anyway: the node may be able to pull the image without them.
    async fn pull_secret_written(&self) {
        let Some(settled) = &self.pull_secret else { return };
        let mut settled = settled.clone();
        let _ = timeout(PULL_SECRET_TIMEOUT, settled.wait_for(|settled| *settled)).await;
    }

    /// Returns the current blueprint. Waits up to [`TEMPLATE_TIMEOUT`] if the template has not been
    /// read yet.
    pub(super) async fn current_blueprint(&self) -> Arc<Blueprint> {
        let mut blueprint = self.blueprint.clone();
        let _ = timeout(TEMPLATE_TIMEOUT, blueprint.wait_for(|blueprint| blueprint.has_read())).await;
        Arc::clone(&blueprint.borrow())
    }

    async fn create_pod(&self, pod: &Pod, object_name: &str, name: &PodName) -> Creation {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match self.cluster.create_pod(pod).await {
                Ok(created) => return self.created(&created).await,
                Err(error) => error,
            };
            let answer = creation(&error);
            let is_unclear = matches!(answer, Creation::Unknown | Creation::Unreachable);
            // The API server checks quotas and permissions before the name. So even after a
            // refusal, the pod may exist because another runner has created it.
            let is_ours = if is_unclear { None } else { self.is_holder_ours(object_name, name).await };
            match (&answer, is_ours) {
                (_, Some(true)) => return Creation::Exists,
                (Creation::Exists, Some(false)) => {
                    tracing::warn!(pod = object_name, "a foreign pod holds the name of a function pod");
                    return refused("name_taken", NAME_TAKEN);
                }
                _ => {}
            }
            // After an unclear answer the pod may have been created. If so, the next attempt fails
            // because the name is taken.
            let is_repeated = answer == Creation::Exists || (is_unclear && error.code().is_some());
            if !is_repeated || attempt == CREATE_ATTEMPTS {
                tracing::warn!(pod = object_name, attempt, error = %Causes(&error), "a pod was not created");
                return answer;
            }
            sleep(retry_after(&error).unwrap_or(CREATE_PAUSE * attempt)).await;
        }
    }

    /// Records a created pod, so that the store knows the pod before the pool gets its UID.
    async fn created(&self, pod: &Pod) -> Creation {
        if let Some(uid) = self.store.record_pod(pod).map(|recorded| recorded.uid) {
            return Creation::Ok(uid);
        }
        if let (Some(name), Some(uid), Some(version)) =
            (&pod.metadata.name, &pod.metadata.uid, &pod.metadata.resource_version)
        {
            // Without its labels or annotations, no runner recognises this pod as its own. So no
            // runner would ever delete it later.
            let deleted = self.cluster.delete_pod(name, uid, version, None).await;
            tracing::warn!(pod = name, outcome = ?deleted, "a created pod lacks its labels or annotations");
        }
        refused("admission", "an admission webhook removed the labels or annotations of function pods")
    }

    /// Reads and records the pod that holds the object name, because the watch may be late or
    /// interrupted. Returns whether that pod is `name`; `None` if there is no pod or no answer.
    async fn is_holder_ours(&self, object_name: &str, name: &PodName) -> Option<bool> {
        let pod = self.cluster.get_pod(object_name).await.ok()??;
        Some(self.store.record_pod(&pod).is_some_and(|recorded| recorded.name == *name))
    }

    /// Returns the name of a pod's object: the recorded name, or else the name for a new pod.
    pub(super) fn object_name(&self, uid: &Uid, name: &PodName) -> Option<String> {
        self.store.object_name(uid).or_else(|| object_name(name))
    }

    async fn delete(
        &self,
        name: &PodName,
        uid: &Uid,
        judged: &ResourceVersion,
        failed: bool,
    ) -> WriteOutcome {
        let Some(object_name) = self.object_name(uid, name) else { return WriteOutcome::Gone };
        let grace = failed.then_some(FAILED_GRACE);
        match self.cluster.delete_pod(&object_name, uid.as_str(), judged.as_str(), grace).await {
            Ok(()) => {
                self.refused.lock().remove(NOT_DELETED);
                self.store.record_ending(uid);
                WriteOutcome::Ok
            }
            Err(error) => {
                let outcome = self.failed(NOT_DELETED, &object_name, uid, &error, deletion(&error)).await;
                sleep(retry_after(&error).unwrap_or_default()).await;
                outcome
            }
        }
    }

    async fn push(
        &self,
        name: &PodName,
        uid: &Uid,
        judged: &ResourceVersion,
        annotations: &BTreeMap<&str, String>,
    ) -> WriteOutcome {
        let Some(object_name) = self.object_name(uid, name) else { return WriteOutcome::Gone };
        match self.cluster.annotate_pod(&object_name, uid.as_str(), judged.as_str(), annotations).await {
            Ok(pod) => {
                self.refused.lock().remove(NOT_PUSHED);
                self.store.record_pod(&pod).map_or(WriteOutcome::Gone, |_| WriteOutcome::Ok)
            }
            Err(error) => {
                // No pause here: calls may wait for the result, and the pool itself pauses before
                // the next push.
                self.failed(NOT_PUSHED, &object_name, uid, &error, pushing(&error)).await
            }
        }
    }

    /// Logs a failed write, and returns its `outcome`. Only the first refusal is a warning, because a
    /// refusal usually repeats for all pods. Conflicts and vanished pods are normal, and the watch
    /// logs an outage. Reads the pod after a conflict, without a pause, because a call may wait for
    /// the result.
    async fn failed(
        &self,
        what: &'static str,
        pod: &str,
        uid: &Uid,
        error: &RequestError,
        outcome: WriteOutcome,
    ) -> WriteOutcome {
        let is_refusal = error.code().is_some_and(|code| !matches!(code, 404 | 409));
        let error = Causes(error).to_string();
        if is_refusal && self.refused.lock().insert(what) {
            tracing::warn!(pod, error, "{what}");
        } else {
            tracing::debug!(pod, error, "{what}");
        }
        if outcome == WriteOutcome::Conflict {
            self.record_answer(self.cluster.get_pod(pod).await, uid);
        }
        outcome
    }
}

fn refused(kind: &'static str, text: impl Into<Arc<str>>) -> Creation {
    Creation::Refused(Reason::new(kind, text))
}
