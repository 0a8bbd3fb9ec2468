//! The requests that the backend sends to the API server. The number of concurrent requests is
//! limited.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
pub(super) use porch_fn_kubernetes::{RequestError, bounded};
pub(super) use porch_fn_telemetry::Causes;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Limits of concurrent requests; each request uses a connection. Pushes (patches of a pod's
/// reclaim-after time) have their own permits, because calls may wait for a push. Lookups of probed
/// or terminating pods have their own permits, because hundreds may come at once.
const MAX_PUSHES: usize = 16;
const MAX_LOOKS: usize = 4;
const MAX_OTHERS: usize = 32;
/// How long a request waits for its permit. The pool waits one minute for the result of the
/// request.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(40);

/// Pods and Services of the function namespace.
pub(crate) struct Cluster {
    /// For watches only; requests use the methods of this type.
    pub(super) pods: Api<Pod>,
    /// The Services; also for watches only.
    pub(super) services: Api<Service>,
    pushes: Semaphore,
    looks: Semaphore,
    others: Semaphore,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client, namespace),
            pushes: Semaphore::new(MAX_PUSHES),
            looks: Semaphore::new(MAX_LOOKS),
            others: Semaphore::new(MAX_OTHERS),
        }
    }

    pub(super) async fn create_pod(&self, pod: &Pod) -> Result<Pod, RequestError> {
        permitted(&self.others, self.pods.create(&PostParams::default(), pod)).await
    }

    /// Returns `None` if no pod has this name.
    pub(super) async fn get_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        permitted(&self.others, self.pods.get_opt(name)).await
    }

    /// Like [`get_pod`](Self::get_pod), with the permits for probed and terminating pods.
    pub(super) async fn look_at_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        permitted(&self.looks, self.pods.get_opt(name)).await
    }

    /// Deletes the pod if it has exactly this version. `grace` is its grace period in seconds; with
    /// `None` the pod's own grace period applies.
    pub(super) async fn delete_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        grace: Option<u32>,
    ) -> Result<(), RequestError> {
        let params = DeleteParams { grace_period_seconds: grace, ..deletion(uid, Some(resource_version)) };
        permitted(&self.others, self.pods.delete(name, &params)).await.map(drop)
    }

    /// Writes annotations if the pod has exactly this version.
    pub(super) async fn annotate_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        annotations: &BTreeMap<&str, String>,
    ) -> Result<Pod, RequestError> {
        let patch = Patch::Merge(json!({
            "metadata": { "uid": uid, "resourceVersion": resource_version, "annotations": annotations }
        }));
        permitted(&self.pushes, self.pods.patch(name, &PatchParams::default(), &patch)).await
    }

    pub(super) async fn create_service(&self, service: &Service) -> Result<Service, RequestError> {
        permitted(&self.others, self.services.create(&PostParams::default(), service)).await
    }

    /// Returns `None` if no Service has this name.
    pub(super) async fn get_service(&self, name: &str) -> Result<Option<Service>, RequestError> {
        permitted(&self.others, self.services.get_opt(name)).await
    }

    pub(super) async fn delete_service(&self, name: &str, uid: &str) -> Result<(), RequestError> {
        permitted(&self.others, self.services.delete(name, &deletion(uid, None))).await.map(drop)
    }
}

/// The parameters to delete exactly the object `uid`, and only in `resource_version` if given.
fn deletion(uid: &str, resource_version: Option<&str>) -> DeleteParams {
    let resource_version = resource_version.map(str::to_owned);
    DeleteParams::default().preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version })
}

/// Whether the cluster reports that it has no kind with this plural. The function lists the kinds,
/// which every account may do. A request for objects is no test: without permission, the API server
/// answers 403 for any kind, also for one that does not exist.
pub(super) async fn has_no_such_kind(client: &Client, api_version: &str, plural: &str) -> bool {
    match bounded(client.list_api_group_resources(api_version)).await {
        Ok(list) => !list.resources.iter().any(|resource| resource.name == plural),
        Err(error) => error.code() == Some(404),
    }
}

/// Sends a request with a permit. The request's time limit starts when it has the permit. The
/// result is boxed because the client's futures are large.
fn permitted<'a, T: 'a>(
    permits: &'a Semaphore,
    request: impl Future<Output = Result<T, kube::Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, RequestError>> {
    let request = async {
        // The semaphore is never closed.
        let Ok(_permit) = timeout(PERMIT_TIMEOUT, permits.acquire()).await else {
            return Err(RequestError::Timeout);
        };
        bounded(request).await
    };
    request.boxed()
}
