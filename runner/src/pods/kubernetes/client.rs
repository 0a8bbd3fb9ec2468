//! The API server as the backend uses it: requests that wait their turn, and what their answers mean to the pool.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
pub(super) use porch_fn_kubernetes::{RequestError, bounded};
use porch_fn_pool::{Creation, WriteOutcome};
pub(super) use porch_fn_telemetry::Causes;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::answers;

/// Requests at once: each is a connection. Calls may wait for a push, so those have permits of their own; and so have
/// looks at pods that are probed or end, which come by the hundred.
const MAX_PUSHES: usize = 16;
const MAX_LOOKS: usize = 4;
const MAX_OTHERS: usize = 32;
/// How long a request waits for its permit. The pool waits a minute for an answer.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(40);

/// What a request without an answer that helps means to the pool.
pub(super) trait Outcome {
    /// What a create came to.
    fn creation(&self) -> Creation;
    /// What a delete came to.
    fn deletion(&self) -> WriteOutcome;
    /// What a push came to.
    fn pushing(&self) -> WriteOutcome;
    /// How long the server asks to be left alone.
    fn retry_after(&self) -> Option<Duration>;
}

/// Pods and Services of the function namespace.
pub(super) struct Cluster {
    pods: Api<Pod>,
    services: Api<Service>,
    namespace: String,
    pushes: Semaphore,
    looks: Semaphore,
    others: Semaphore,
}

// === impl Outcome ===

impl Outcome for RequestError {
    fn creation(&self) -> Creation {
        match self {
            Self::Kube(error) => answers::creation(error),
            // A webhook that hangs takes the time of a create, of one image.
            Self::Timeout => Creation::Unknown,
        }
    }

    fn deletion(&self) -> WriteOutcome {
        match self {
            Self::Kube(error) => answers::deletion(error),
            Self::Timeout => WriteOutcome::Unreachable,
        }
    }

    fn pushing(&self) -> WriteOutcome {
        match self {
            Self::Kube(error) => answers::pushing(error),
            Self::Timeout => WriteOutcome::Unreachable,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Kube(error) => answers::retry_after(error),
            Self::Timeout => None,
        }
    }
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            pushes: Semaphore::new(MAX_PUSHES),
            looks: Semaphore::new(MAX_LOOKS),
            others: Semaphore::new(MAX_OTHERS),
        }
    }

    /// For watches; requests go through the functions below.
    pub(super) fn pods(&self) -> &Api<Pod> {
        &self.pods
    }

    /// The same of Services.
    pub(super) fn services(&self) -> &Api<Service> {
        &self.services
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    fn request<'a, T: 'a>(
        &'a self,
        request: impl Future<Output = Result<T, kube::Error>> + Send + 'a,
    ) -> Answer<'a, T> {
        permitted(&self.others, request)
    }

    pub(super) async fn create_pod(&self, pod: &Pod) -> Result<Pod, RequestError> {
        self.request(self.pods.create(&PostParams::default(), pod)).await
    }

    /// `None`: there is no pod of this name.
    pub(super) async fn get_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        self.request(self.pods.get_opt(name)).await
    }

    /// The same for probes, and for pods that end.
    pub(super) async fn look_at_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        permitted(&self.looks, self.pods.get_opt(name)).await
    }

    /// Deletes the pod in exactly this state. `grace` is how many seconds it may take to end; `None`: as many as its
    /// template says.
    pub(super) async fn delete_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        grace: Option<u32>,
    ) -> Result<(), RequestError> {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: Some(resource_version.to_owned()) };
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        let params = params.preconditions(preconditions);
        self.request(self.pods.delete(name, &params)).await.map(drop)
    }

    /// Writes annotations if the pod is in exactly this state.
    pub(super) async fn annotate_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        annotations: &[(&str, String)],
    ) -> Result<Pod, RequestError> {
        let annotations: BTreeMap<_, _> = annotations.iter().cloned().collect();
        let patch = Patch::Merge(json!({
            "metadata": {
                "uid": uid,
                "resourceVersion": resource_version,
                "annotations": annotations,
            }
        }));
        permitted(&self.pushes, self.pods.patch(name, &PatchParams::default(), &patch)).await
    }

    pub(super) async fn create_service(&self, service: &Service) -> Result<Service, RequestError> {
        self.request(self.services.create(&PostParams::default(), service)).await
    }

    /// `None`: there is no Service of this name.
    pub(super) async fn get_service(&self, name: &str) -> Result<Option<Service>, RequestError> {
        self.request(self.services.get_opt(name)).await
    }

    pub(super) async fn delete_service(&self, name: &str, uid: &str) -> Result<(), RequestError> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(preconditions);
        self.request(self.services.delete(name, &params)).await.map(drop)
    }
}

/// Whether the cluster says that it has no kind of object with this plural. Who may not see objects is not told that there
/// is no such kind, but everyone is told which kinds there are.
pub(super) async fn has_no_such_kind(client: &Client, api_version: &str, plural: &str) -> bool {
    match bounded(client.list_api_group_resources(api_version)).await {
        Ok(list) => !list.resources.iter().any(|resource| resource.name == plural),
        Err(error) => error.code() == Some(404),
    }
}

/// Boxed, since the client's futures are large.
type Answer<'a, T> = BoxFuture<'a, Result<T, RequestError>>;

/// The clock of a request starts when its permit is there: what was not sent has not failed.
fn permitted<'a, T: 'a>(
    permits: &'a Semaphore,
    request: impl Future<Output = Result<T, kube::Error>> + Send + 'a,
) -> Answer<'a, T> {
    let request = async {
        // Never closed.
        let Ok(_permit) = timeout(PERMIT_TIMEOUT, permits.acquire()).await else {
            return Err(RequestError::Timeout);
        };
        bounded(request).await
    };
    request.boxed()
}
