//! The API server as the backend uses it. Every request has a time limit, and none is repeated here: whoever asks knows
//! what an answer that never came means.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Config};
use porch_fn_pool::{Creation, Deletion, Pushing};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{answers, names};

/// How long one request may take, waiting for its turn included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one watch request lasts: a connection that died in silence is noticed about then.
pub(super) const WATCH_SECONDS: u32 = 60;
/// A connection that is silent for so long is dead; a watch speaks up sooner, if only to end.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);
/// Requests at once: each is a connection. Calls may wait for a push, so those have turns of their own.
const MAX_PUSHES: usize = 16;
const MAX_OTHERS: usize = 32;

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

/// An error with all its causes, for the log: of a connection that fails, the first alone says next to nothing.
pub(super) struct Causes<'a>(pub(super) &'a dyn Error);

/// Pods and Services of the function namespace.
pub(super) struct Cluster {
    pods: Api<Pod>,
    services: Api<Service>,
    namespace: String,
    pushes: Semaphore,
    others: Semaphore,
}

/// A client that neither hangs on a dead API server nor repeats requests by itself.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    Client::try_from(config)
}

/// Waits for `request`, bounded.
pub(super) async fn bounded<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match timeout(TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RequestError::Timeout),
    }
}

// === impl Causes ===

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many say what their cause says.
            if !told.contains(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

// === impl RequestError ===

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

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            pushes: Semaphore::new(MAX_PUSHES),
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
        in_turn(&self.others, request)
    }

    pub(super) async fn create_pod(&self, pod: &Pod) -> Result<Pod, RequestError> {
        self.request(self.pods.create(&PostParams::default(), pod)).await
    }

    /// `None`: there is no pod of this name.
    pub(super) async fn get_pod(&self, name: &str) -> Result<Option<Pod>, RequestError> {
        self.request(self.pods.get_opt(name)).await
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
        self.request(self.pods.delete(name, &params)).await.map(drop)
    }

    /// Writes reclaim-after if the pod is in exactly this state.
    pub(super) async fn push_pod(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        reclaim_after: &str,
    ) -> Result<Pod, RequestError> {
        let patch = Patch::Merge(json!({
            "metadata": {
                "uid": uid,
                "resourceVersion": resource_version,
                "annotations": { names::RECLAIM_AFTER: reclaim_after },
            }
        }));
        in_turn(&self.pushes, self.pods.patch(name, &PatchParams::default(), &patch)).await
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

/// Boxed, since the client's futures are large.
type Answer<'a, T> = BoxFuture<'a, Result<T, RequestError>>;

fn in_turn<'a, T: 'a>(
    turns: &'a Semaphore,
    request: impl Future<Output = Result<T, kube::Error>> + Send + 'a,
) -> Answer<'a, T> {
    let request = async {
        // Never closed.
        let _turn = turns.acquire().await;
        request.await
    };
    bounded(request).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Because(&'static str, #[source] Option<Box<Because>>);

    #[test]
    fn causes_are_told_once() {
        let refused = Because("connection refused", None);
        let connect = Because("client error (Connect)", Some(Box::new(refused)));
        let service = Because("ServiceError: client error (Connect)", Some(Box::new(connect)));
        assert_eq!(Causes(&service).to_string(), "ServiceError: client error (Connect): connection refused");
    }
}
