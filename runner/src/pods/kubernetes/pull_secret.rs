//! Copies the runner's registry credentials into the Secret that nodes use to pull images of
//! function pods.
//!
//! Only the runner that owns the Secret's name on the ring writes it; other runners only read it.
//! Otherwise runners would overwrite each other's content, because a mounted file changes at
//! different times on different runners. A Secret without the label of runners is never deleted. No
//! log line and no error quotes a Secret, because it has the credentials.

#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, GetParams, ObjectMeta, PostParams, Preconditions};
use kube::core::request::Error as BuildError;
use kube::{Client, Resource};
use porch_fn_backoff::Backoff;
use porch_fn_pool::{OwnedShards, ShardKey};
use porch_fn_registry::CredentialsFileContent;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::client::{Causes, RequestError, bounded};
use super::names;
use crate::settings::changed;

/// The type of a Secret that the kubelet uses to pull images.
const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// The key that the type requires.
const KEY: &str = ".dockerconfigjson";
/// How long startup waits for the first content. After that, no content means that there are no
/// credentials.
const FIRST_CONTENT_WITHIN: Duration = Duration::from_secs(1);
/// Until the Secret has the wanted content, the pause between attempts doubles, from the first to
/// the last of these.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// If the next pause is longer than this, new pods no longer wait for new credentials.
const LAST_AWAITED_PAUSE: Duration = Duration::from_secs(2);

/// The Secret on the API server.
pub(crate) struct PullSecret {
    pub(crate) client: Client,
    /// The function namespace.
    pub(crate) namespace: String,
    /// `--registry-auth-secret-name`.
    pub(crate) name: String,
}

// === impl PullSecret ===

impl PullSecret {
    /// Keeps the Secret equal to `content`, forever. Checks the Secret at startup, and when the
    /// content or the owner changes. Checks it also at the interval `every`, because somebody may
    /// delete it. Without content, the Secret is not changed. `settled` is false while pods should
    /// wait for new credentials.
    pub(crate) async fn follow(
        self,
        mut content: watch::Receiver<Option<CredentialsFileContent>>,
        mut owned: watch::Receiver<OwnedShards>,
        every: Duration,
        settled: watch::Sender<bool>,
    ) {
        let every = every.max(FIRST_PAUSE);
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        let (mut last_wanted, mut last_error) = (None, String::new());
        let _ = timeout(FIRST_CONTENT_WITHIN, content.wait_for(Option::is_some)).await;
        loop {
            let wanted = content.borrow_and_update().clone().map(|content| content.bytes);
            if wanted != last_wanted {
                backoff.reset();
                settled.send_replace(wanted.is_none());
                last_wanted.clone_from(&wanted);
            }
            let is_owner = owned.borrow_and_update().owns(&ShardKey::from(self.name.as_str()));
            let written = match &wanted {
                Some(wanted) => self.bring_up_to_date(wanted, is_owner).await,
                None => Ok(true),
            };
            let mut pause = backoff.next_pause();
            let is_done = written == Ok(true);
            if is_done || pause > LAST_AWAITED_PAUSE {
                settled.send_replace(true);
            }
            if is_done {
                backoff.reset();
                pause = every;
            }
            let error = written.err().unwrap_or_default();
            if !error.is_empty() && error != last_error {
                tracing::error!(error, "the pull secret of function pods is not written");
            }
            last_error = error;
            tokio::select! {
                () = changed(&mut content) => {}
                () = changed(&mut owned) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Compares the Secret with `wanted`, and writes it if `is_owner`. Returns whether the Secret
    /// now has the content.
    async fn bring_up_to_date(&self, wanted: &[u8], is_owner: bool) -> Result<bool, String> {
        let existing = self.get().await?;
        let has_type = existing.as_ref().is_some_and(|secret| secret.type_.as_deref() == Some(TYPE));
        let is_there = existing.is_some();
        let data = existing.as_ref().and_then(|secret| secret.data.as_ref()?.get(KEY));
        if has_type && data.is_some_and(|data| data.0 == wanted) {
            return Ok(true);
        }
        if !is_owner {
            return Ok(false);
        }
        let written = match existing {
            Some(secret) if has_type && secret.immutable != Some(true) => {
                self.write(Some(secret), wanted).await
            }
            Some(secret) if !names::is_ours(&secret.metadata) => {
                return Err(format!(
                    "Secret {} of the function namespace does not belong to the runner, and cannot hold registry \
                     credentials, because it is immutable or not of type kubernetes.io/dockerconfigjson: choose another \
                     name with --registry-auth-secret-name, or delete this Secret",
                    self.name
                ));
            }
            Some(secret) => match self.delete(secret).await {
                Ok(()) => self.write(None, wanted).await,
                failed => failed,
            },
            None => self.write(None, wanted).await,
        };
        match written {
            Ok(()) => {
                tracing::info!(secret = self.name, "the pull secret of function pods was written");
                Ok(true)
            }
            // Another writer was faster: the next attempt reads the Secret again.
            Err(error) if error.code() == Some(409) || (error.code() == Some(404) && is_there) => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Returns why the Secret is not written, and the fix. The text never quotes the Secret.
    fn failed(&self, error: &RequestError) -> String {
        let (name, cause) = (&self.name, Causes(error));
        match error.code() {
            Some(403) => format!(
                "the runner may not write Secret {name} in the function namespace: its Role needs the verbs create, \
                 delete, get and update on secrets there, and no quota or policy may forbid the write: {cause}"
            ),
            Some(404) => format!(
                "Secret {name} cannot be created: the function namespace (--pod-namespace) does not exist: create it"
            ),
            Some(400 | 413 | 422) => format!(
                "the API server refuses Secret {name}: the file of --registry-auth-secret-path must be a docker \
                 config in JSON of at most 1 MiB, and --registry-auth-secret-name a valid name"
            ),
            _ => format!(
                "Secret {name} of the function namespace was not written: the API server refused it, or did not \
                 answer; the runner retries: {cause}"
            ),
        }
    }

    async fn get(&self) -> Result<Option<Secret>, String> {
        match self.send(self.requests().get(&self.name, &GetParams::default())).await {
            // The parser's reason may quote the Secret.
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|_| {
                let name = &self.name;
                format!("Secret {name} of the function namespace cannot be read: the API server sent no valid Secret")
            }),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Creates the Secret, or replaces `existing` if it still has the same resource version.
    async fn write(&self, existing: Option<Secret>, wanted: &[u8]) -> Result<(), RequestError> {
        let (requests, params, is_new) = (self.requests(), PostParams::default(), existing.is_none());
        let mut secret = existing.unwrap_or_default();
        secret.metadata.name = Some(self.name.clone());
        let request = encoded(secret, wanted).and_then(|body| {
            if is_new { requests.create(&params, body) } else { requests.replace(&self.name, &params, body) }
        });
        self.send(request).await.map(drop)
    }

    /// Deletes the Secret if it still has the same resource version.
    async fn delete(&self, existing: Secret) -> Result<(), RequestError> {
        let ObjectMeta { uid, resource_version, .. } = existing.metadata;
        let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
        self.send(self.requests().delete(&self.name, &params)).await.map(drop)
    }

    fn requests(&self) -> kube::core::Request {
        kube::core::Request::new(Secret::url_path(&(), Some(&self.namespace)))
    }

    /// Does not use [`kube::Api`], which logs an answer that it cannot parse.
    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, BuildError>,
    ) -> Result<String, RequestError> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        bounded(self.client.request_text(request)).await
    }
}

/// Serialises `secret` with the content and the label of runners, otherwise unchanged.
fn encoded(mut secret: Secret, wanted: &[u8]) -> Result<Vec<u8>, BuildError> {
    secret.type_ = Some(TYPE.to_owned());
    secret.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(wanted.to_vec()));
    let labels = secret.metadata.labels.get_or_insert_default();
    labels.insert(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned());
    serde_json::to_vec(&secret).map_err(BuildError::SerializeBody)
}
