//! The API server as the backend uses it. Every request has a time limit, and none is repeated here: whoever asks knows
//! what an answer that never came means.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Config};
use porch_fn_pool::{Creation, Deletion, Pushing};
use serde_json::json;

use super::{answers, names};

/// How long one request may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request has no answer that helps.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The API server, or the way to it, says no.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// No answer in time.
    #[error("no answer from the API server within {}s", TIMEOUT.as_secs())]
    Timeout,
}

/// Pods and Services of the function namespace.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) pods: Api<Pod>,
    pub(super) services: Api<Service>,
    pub(super) namespace: String,
}

/// A client that neither hangs on a dead API server nor repeats requests by itself.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.default_retry = false;
    Client::try_from(config)
}

/// Waits for `request`, bounded.
pub(super) async fn bounded<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RequestError::Timeout),
    }
}

impl RequestError {
    /// The status code of the answer, if there was one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// What a create came to.
    pub(super) fn creation(&self) -> Creation {
        match self {
            Self::Kube(error) => answers::creation(error),
            Self::Timeout => Creation::Unknown,
        }
    }

    /// What a delete came to.
    pub(super) fn deletion(&self) -> Deletion {
        match self {
            Self::Kube(error) => answers::deletion(error),
            Self::Timeout => Deletion::Unknown,
        }
    }

    /// What a push came to.
    pub(super) fn pushing(&self) -> Pushing {
        match self {
            Self::Kube(error) => answers::pushing(error),
            Self::Timeout => Pushing::Unreachable,
        }
    }
}

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    pub(super) async fn create_pod(&self, pod: &Pod) -> Result<Pod, RequestError> {
        bounded(self.pods.create(&PostParams::default(), pod)).await
    }

    /// `None`: there is no pod of this name.
    pub(super) async fn get_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        bounded(self.pods.get_opt(name)).await
    }

    /// Deletes the pod in exactly this state.
    pub(super) async fn delete_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
    ) -> Result<(), RequestError> {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: Some(resource_version.to_owned()) };
        let params = DeleteParams::default().preconditions(preconditions);
        bounded(self.pods.delete(name, &params)).await.map(drop)
    }

    /// Writes reclaim-after if the pod is in exactly this state.
    pub(super) async fn push_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        reclaim_after: &str,
    ) -> Result<Pod, RequestError> {
        let patch = json!({
            "metadata": {
                "uid": uid,
                "resourceVersion": resource_version,
                "annotations": { names::RECLAIM_AFTER: reclaim_after },
            }
        });
        bounded(self.pods.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    pub(super) async fn create_service(&self, service: &Service) -> Result<Service, RequestError> {
        bounded(self.services.create(&PostParams::default(), service)).await
    }

    pub(super) async fn get_service(&self, name: &str) -> Result<Option<Service>, RequestError> {
        bounded(self.services.get_opt(name)).await
    }

    pub(super) async fn delete_service(&self, name: &str, uid: &str) -> Result<(), RequestError> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(preconditions);
        bounded(self.services.delete(name, &params)).await.map(drop)
    }
}
