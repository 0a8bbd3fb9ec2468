//! Copies the runner's registry credentials into the Secret by which nodes pull the images of function pods.
//!
//! Every runner writes the same Secret, each from its own mounted file, and a change of the file comes to them at
//! different times. So the Secret carries the time of the file it was copied from, and nobody overwrites a later one.
//! A Secret without our label is never deleted. No Secret that the API server sends is logged or kept in an error: it holds the credentials.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, GetParams, ObjectMeta, PostParams, Preconditions};
use kube::{Client, Resource};
use porch_fn_pool::Time;
use porch_fn_registry::CredentialsFileContent;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::client::{Causes, RequestError, bounded};
use super::names;
use super::times::{format_time, parse_time};

/// The only type that a kubelet reads in this form.
const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// The key that the type wants.
const KEY: &str = ".dockerconfigjson";
/// Looks in one go, when other runners write at the same time.
const LOOKS: usize = 5;
/// After a start the file may not have been read yet. Then there is none.
const FIRST_CONTENT_WITHIN: Duration = Duration::from_secs(1);
/// Pauses after a failure, doubling.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// The file with the credentials, in the docker config's format.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    /// When the file was changed.
    pub(crate) modified: Option<Time>,
}

impl From<&CredentialsFileContent> for Content {
    fn from(file: &CredentialsFileContent) -> Self {
        let since_epoch = file.modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self { bytes: file.bytes.clone(), modified: since_epoch.map(|since| Time::from_millis(0) + since) }
    }
}

/// Whether pods can be created that name the Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// There is content that was not tried yet, or may be soon: pods had better wait a little.
    Pending,
    /// There is no content, and so no Secret of ours to wait for.
    Nothing,
    /// The Secret is there.
    Ready,
    /// The last content could not be written, and why. It is tried again.
    Failed(String),
}

/// What is to be done to the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Create,
    Update,
    /// It has the content already.
    Keep,
    /// It is ours, and can only be changed by deleting it.
    Recreate,
    /// It cannot be changed, and is not ours to delete.
    Foreign,
    /// It is a copy of a later file than ours.
    NewerThere,
}

/// Why the Secret is not as it should be. Says what to do next.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(
        "the runner may not write Secret {name} in the function namespace: its Role needs the verbs create, delete, \
         get and update on secrets there, and no quota or policy may be in the way; the runner's log has the cause"
    )]
    Forbidden { name: String, source: RequestError },
    #[error(
        "Secret {name} cannot be created: the function namespace (--pod-namespace) does not exist: create it"
    )]
    NoNamespace { name: String },
    #[error(
        "the API server refuses Secret {name}: the file of --registry-auth-secret-path must be a docker config in \
         JSON of at most 1 MiB, and --registry-auth-secret-name a valid name"
    )]
    Invalid { name: String },
    #[error(
        "Secret {name} of the function namespace is not the runner's, and cannot take registry credentials: it is \
         immutable, or not of type kubernetes.io/dockerconfigjson; choose another name with \
         --registry-auth-secret-name, or delete it"
    )]
    Foreign { name: String },
    #[error("Secret {name} is changed by others all the time: let only function runners write it")]
    Contended { name: String },
    #[error("Secret {name} of the function namespace cannot be read: what the API server sends is no Secret")]
    Malformed { name: String },
    #[error(
        "Secret {name} of the function namespace was not written: the API server does not do it, or does not say so; \
         it is tried again, and the runner's log has the cause"
    )]
    Request { name: String, source: RequestError },
}

/// The Secret on the API server.
struct Replica<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
}

/// Keeps the Secret `name` a copy of `content` for ever: at the start, when the content changes, and `every` so often,
/// for somebody may have deleted it. While there is no content, the Secret is left as it is.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    name: String,
    mut content: watch::Receiver<Option<Content>>,
    every: Duration,
    state: watch::Sender<State>,
) {
    let replica = Replica { client: &client, namespace: &namespace, name: &name };
    let every = every.max(FIRST_PAUSE);
    let mut pause = FIRST_PAUSE;
    let mut last_error = String::new();
    let mut told_newer = false;
    // What the Secret was last seen to have, or to have later.
    let mut done: Option<Content> = None;
    // What was last tried to be written.
    let mut tried: Option<Content> = None;
    let _ = timeout(FIRST_CONTENT_WITHIN, content.wait_for(Option::is_some)).await;
    loop {
        let wanted = content.borrow_and_update().clone();
        if wanted.is_some() && wanted != tried {
            // Not at each further try: then pods have waited enough.
            set(&state, State::Pending);
            tried.clone_from(&wanted);
        }
        let wait = match &wanted {
            None => {
                if done.is_none() {
                    set(&state, State::Nothing);
                }
                every
            }
            Some(wanted) => match replica.bring_up_to_date(wanted).await {
                Ok(plan) => {
                    let newer = plan == Plan::NewerThere;
                    if newer && !told_newer {
                        tracing::info!(
                            secret = name,
                            "the pull secret has later credentials than this runner"
                        );
                    }
                    told_newer = newer;
                    last_error.clear();
                    pause = FIRST_PAUSE;
                    done = Some(wanted.clone());
                    set(&state, State::Ready);
                    every
                }
                Err(error) => {
                    let causes = Causes(&error).to_string();
                    if causes != last_error {
                        tracing::error!(error = causes, "the pull secret of function pods is not written");
                        last_error = causes;
                    }
                    // Pods do with what was written before, unless it is not what it should be.
                    let written = done.as_ref() == Some(wanted);
                    set(&state, if written { State::Ready } else { State::Failed(error.to_string()) });
                    let wait = pause;
                    pause = (pause * 2).min(LAST_PAUSE);
                    wait
                }
            },
        };
        tokio::select! {
            () = changed(&mut content) => {}
            () = sleep(wait) => {}
        }
    }
}

fn set(state: &watch::Sender<State>, new: State) {
    state.send_if_modified(|state| {
        let differs = *state != new;
        *state = new;
        differs
    });
}

/// Never when there is nobody left who could change it.
async fn changed(content: &mut watch::Receiver<Option<Content>>) {
    if content.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn plan(existing: Option<&Secret>, wanted: &Content) -> Plan {
    let Some(existing) = existing else { return Plan::Create };
    let replace = if is_ours(existing) { Plan::Recreate } else { Plan::Foreign };
    if existing.type_.as_deref() != Some(TYPE) {
        return replace;
    }
    let data = existing.data.as_ref().and_then(|data| data.get(KEY));
    if data.is_some_and(|data| data.0 == *wanted.bytes) {
        return Plan::Keep;
    }
    let there = copied_from(existing).and_then(parse_time);
    if there.is_some_and(|there| wanted.modified.is_none_or(|ours| there > ours)) {
        return Plan::NewerThere;
    }
    if existing.immutable == Some(true) { replace } else { Plan::Update }
}

fn is_ours(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(names::MANAGED_BY)).is_some_and(|manager| manager == names::MANAGER)
}

/// The time of the file that the Secret is a copy of, as it was written. `None`: no runner's copy.
fn copied_from(secret: &Secret) -> Option<&str> {
    secret.metadata.annotations.as_ref()?.get(names::CONFIG_TIME).map(String::as_str)
}

/// `base` with the content, and otherwise as it is.
fn copy(mut base: Secret, wanted: &Content) -> Secret {
    base.type_ = Some(TYPE.to_owned());
    base.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(wanted.bytes.to_vec()));
    let labels = base.metadata.labels.get_or_insert_default();
    labels.insert(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned());
    let annotations = base.metadata.annotations.get_or_insert_default();
    match wanted.modified {
        Some(modified) => annotations.insert(names::CONFIG_TIME.to_owned(), format_time(modified)),
        None => annotations.remove(names::CONFIG_TIME),
    };
    base
}

// === impl Content ===

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("bytes", &format_args!("[{} bytes]", self.bytes.len()))
            .field("modified", &self.modified)
            .finish()
    }
}

// === impl Replica ===

impl Replica<'_> {
    /// Looks and writes, until nothing is to be written. Returns what was done.
    async fn bring_up_to_date(&self, wanted: &Content) -> Result<Plan, WriteError> {
        let name = self.name;
        for _ in 0..LOOKS {
            let existing = self.get().await?;
            let plan = plan(existing.as_ref(), wanted);
            let written = match (plan, existing) {
                (Plan::Keep | Plan::NewerThere, _) => return Ok(plan),
                (Plan::Foreign, _) => return Err(WriteError::Foreign { name: name.to_owned() }),
                (_, None) => self.create(wanted).await,
                (Plan::Recreate, Some(existing)) => {
                    tracing::info!(secret = name, "replacing the pull secret, since it cannot be changed");
                    match self.delete(existing).await {
                        Ok(()) => self.create(wanted).await,
                        Err(error) => Err(error),
                    }
                }
                (_, Some(existing)) => {
                    if copied_from(&existing).is_none() {
                        tracing::info!(secret = name, "overwriting a pull secret that no runner has written");
                    }
                    self.update(existing, wanted).await
                }
            };
            match written {
                Ok(()) => {
                    tracing::info!(secret = name, ?plan, "the pull secret of function pods was written");
                    return Ok(plan);
                }
                Err(error) => match (error.code(), plan) {
                    // Another was faster.
                    (Some(409), _) | (Some(404), Plan::Update | Plan::Recreate) => {}
                    (Some(404), _) => return Err(WriteError::NoNamespace { name: name.to_owned() }),
                    _ => return Err(self.failed(error)),
                },
            }
        }
        Err(WriteError::Contended { name: name.to_owned() })
    }

    fn failed(&self, source: RequestError) -> WriteError {
        let name = self.name.to_owned();
        match source.code() {
            Some(403) => WriteError::Forbidden { name, source },
            Some(400 | 413 | 422) => WriteError::Invalid { name },
            _ => WriteError::Request { name, source },
        }
    }

    async fn get(&self) -> Result<Option<Secret>, WriteError> {
        match self.send(self.requests().get(self.name, &GetParams::default())).await {
            Ok(text) => match serde_json::from_str(&text) {
                Ok(secret) => Ok(Some(secret)),
                // The parser's reason may quote what it read.
                Err(_) => Err(WriteError::Malformed { name: self.name.to_owned() }),
            },
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn create(&self, wanted: &Content) -> Result<(), RequestError> {
        let metadata = ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() };
        let secret = copy(Secret { metadata, ..Secret::default() }, wanted);
        let request = encoded(&secret, |body| self.requests().create(&PostParams::default(), body));
        self.send(request).await.map(drop)
    }

    /// Only in exactly this state: the object carries its resource version.
    async fn update(&self, existing: Secret, wanted: &Content) -> Result<(), RequestError> {
        let secret = copy(existing, wanted);
        let request =
            encoded(&secret, |body| self.requests().replace(self.name, &PostParams::default(), body));
        self.send(request).await.map(drop)
    }

    /// Only in exactly this state.
    async fn delete(&self, existing: Secret) -> Result<(), RequestError> {
        let ObjectMeta { uid, resource_version, .. } = existing.metadata;
        let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
        self.send(self.requests().delete(self.name, &params)).await.map(drop)
    }

    fn requests(&self) -> kube::core::Request {
        kube::core::Request::new(Secret::url_path(&(), Some(self.namespace)))
    }

    /// Not by [`kube::Api`], which logs an answer that it cannot parse.
    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, RequestError> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        bounded(self.client.request_text(request)).await
    }
}

fn encoded(
    secret: &Secret,
    request: impl FnOnce(Vec<u8>) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    request(serde_json::to_vec(secret).map_err(kube::core::request::Error::SerializeBody)?)
}
