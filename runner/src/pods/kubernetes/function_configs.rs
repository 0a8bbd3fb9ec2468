//! Follows the FunctionConfigs of the function namespace, and writes their status.
//!
//! ```text
//!   schema, list and watch ─► objects ─► FunctionConfigs ─► settings
//!                                └─────► write ─► status, finalizer
//! ```
//!
//! One task does it all; `objects` and `write` have no I/O. If the cluster lacks the kind, or the
//! runner may not list it, there are no FunctionConfigs and only flags and files apply. Until the
//! API server answers, it is unknown whether FunctionConfigs exist.

mod objects;
mod schema;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use porch_fn_backoff::spread;
use porch_fn_kubernetes::{Change, FollowError, Follower, Restarts};
use porch_fn_pool::OwnedShards;
use porch_fn_settings::{FunctionConfigs, Setting, Source, TagSemantics};
use serde_json::Value;
use tokio::sync::watch as watched;
use tokio::time::{Instant, sleep_until};

use self::objects::{Counts, Objects};
use self::write::{Object, Write};
use super::client::{Causes, RequestError, bounded, has_no_such_kind};
use crate::clock::now;
use crate::metrics::Metrics;
use crate::settings::changed;

const GROUP: &str = "config.porch.kpt.dev";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "functionconfigs";
const FLAG: &str = "functionconfig-tags";
const RIGHTS: &str = "grant the runner's service account the Role of the deployment manifests in the function namespace, \
                      with API group config.porch.kpt.dev";

/// How often the schema is read. A runner may notice a changed schema this late.
const SCHEMA_EVERY: Duration = Duration::from_mins(10);
/// How long the runner waits for a schema that it cannot read yet. The API server may be busy, and
/// publishes a new kind's schema some seconds after the kind. After this time tags are read as in
/// Porch 1.6.
const SCHEMA_WITHIN: Duration = Duration::from_secs(20);

/// Maximum number of objects in one page of a list. Pages are small because objects may be large.
const PAGE: u32 = 100;
/// How long one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between attempts before the first answer. Every function's first pod waits for
/// that answer.
const LAST_PAUSE_AT_START: Duration = Duration::from_secs(1);
/// The most changes that are processed together.
const CHUNK: usize = 256;

/// Where FunctionConfigs are, and how to read them.
pub(crate) struct Options {
    pub(crate) client: Client,
    /// The function namespace.
    pub(crate) namespace: String,
    /// The prefix that replaces an empty prefix.
    pub(crate) default_prefix: String,
    /// What tags mean (`--functionconfig-tags`); `None`: the schema decides.
    pub(crate) semantics: Option<TagSemantics>,
    /// The pause before a retry if the kind, the permission to list it or the schema is missing.
    pub(crate) retry_every: Duration,
}

/// Watches the FunctionConfigs forever. After the API server's first answer, `state` holds the
/// objects in effect. If an object becomes invalid, its last valid state stays in effect. The
/// runner that owns the object's name on the ring writes its status.
pub(crate) async fn follow(
    options: Options,
    mut owned: watched::Receiver<OwnedShards>,
    state: watched::Sender<Option<Arc<FunctionConfigs>>>,
    metrics: Arc<Metrics>,
) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "FunctionConfig"));
    let api: Api<DynamicObject> = Api::namespaced_with(options.client.clone(), &options.namespace, &kind);
    let semantics = match options.semantics {
        Some(semantics) => Setting::new(semantics, Source::Flag(FLAG)),
        None => Setting::new(TagSemantics::default(), Source::NoSchema),
    };
    let mut followed = Followed {
        objects: Objects::new(options.default_prefix.clone(), semantics),
        options,
        api,
        follower: None,
        start_at: Instant::now(),
        backoff: Restarts::default(),
        last_end: (End::Failed, 0),
        schema_at: None,
        is_schema_missing: false,
        state,
        metrics,
    };
    followed.metrics.config_valid("functionconfigs", true);
    let mut failing = HashSet::new();
    // The write in flight: one at a time.
    let mut writing: Option<BoxFuture<'static, Written>> = None;
    loop {
        if writing.is_none() {
            let next = followed.objects.next_write(&owned.borrow());
            writing = next.map(|(name, write, patch)| send(followed.api.clone(), name, write, patch).boxed());
        }
        let (next_write, schema_at) = (followed.objects.next_look(), followed.schema_at);
        tokio::select! {
            event = followed.next() => followed.take(event).await,
            Some(written) = OptionFuture::from(writing.as_mut()) => {
                writing = None;
                log_write(&mut failing, &written);
                let (name, write, result) = &written;
                followed.objects.record_write(name, write, result.is_ok());
            }
            () = changed(&mut owned) => followed.objects.look_at_all(),
            Some(()) = OptionFuture::from(schema_at.map(sleep_until)) => {
                followed.read_schema().await;
                followed.publish(false);
            }
            Some(()) = OptionFuture::from(next_write.map(sleep_until)), if writing.is_none() => {}
        }
    }
}

/// A write that ended: the object's name, the write, and its result.
type Written = (String, Write, Result<(), RequestError>);

async fn send(api: Api<DynamicObject>, name: String, write: Write, patch: Value) -> Written {
    let params = PatchParams::default();
    let request = async {
        match &write {
            Write::Status { .. } => api.patch_status(&name, &params, &Patch::Merge(patch)).await.map(drop),
            Write::Finalizer { .. } => {
                let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
                api.patch(&name, &params, &Patch::Json::<()>(patch)).await.map(drop)
            }
        }
    };
    let result = bounded(request).await;
    (name, write, result)
}

/// What a watch reports: a change, or its end.
type WatchEvent = Result<Change<DynamicObject>, FollowError>;

/// How a watch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The cluster has no such kind.
    Missing,
    Forbidden,
    Failed,
}

struct Followed {
    options: Options,
    objects: Objects,
    api: Api<DynamicObject>,
    follower: Option<Follower<DynamicObject>>,
    /// When the next follower starts.
    start_at: Instant,
    backoff: Restarts,
    /// How the last watch ended, and how many watches in a row ended like it.
    last_end: (End, u32),
    /// When the schema is read again; `None`: it is not needed, or read with the next list.
    schema_at: Option<Instant>,
    /// Whether a missing schema has been logged. If so, the runner does not wait for it again.
    is_schema_missing: bool,
    state: watched::Sender<Option<Arc<FunctionConfigs>>>,
    metrics: Arc<Metrics>,
}

// === impl Followed ===

impl Followed {
    /// The next event. Dropping the future loses no event.
    async fn next(&mut self) -> WatchEvent {
        if self.follower.is_none() {
            sleep_until(self.start_at).await;
        }
        let pages = ListParams::default().limit(PAGE);
        let new = || Follower::new(self.api.clone(), pages, PAGE_TIMEOUT, |_| ());
        self.follower.get_or_insert_with(new).next().await
    }

    /// Processes an event and the next events that are ready.
    async fn take(&mut self, event: WatchEvent) {
        let (mut event, mut complete) = (event, false);
        for _ in 0..CHUNK {
            match event {
                Ok(Change::Applied(object)) => {
                    if let Some(object) = Object::new(object) {
                        self.objects.apply(object);
                    }
                }
                Ok(Change::Deleted(object)) => self.objects.remove(&object.metadata.name.unwrap_or_default()),
                Ok(Change::Listed(list)) => {
                    self.read_schema().await;
                    self.objects.replace_all(list);
                    complete = true;
                }
                Ok(Change::Expired) => {}
                Err(error) => {
                    complete |= self.end(&error).await;
                    break;
                }
            }
            match self.next().now_or_never() {
                Some(next) => event = next,
                None => break,
            }
        }
        self.publish(complete);
    }

    /// Decides when the next list is due. Returns `true` if no list will follow soon, because the
    /// kind or the permission is missing.
    async fn end(&mut self, error: &FollowError) -> bool {
        let listed_for = self.follower.take().and_then(|follower| follower.listed_for());
        let mut pause = self.backoff.after(listed_for);
        if self.state.borrow().is_none() {
            pause = pause.min(spread(LAST_PAUSE_AT_START, 1.0..1.5));
        }
        let end = kind_of_end(&self.options.client, error).await;
        // A watch that worked resets the count.
        let is_same = self.last_end.0 == end && self.backoff.failures() > 1;
        let times = if is_same { self.last_end.1.saturating_add(1) } else { 1 };
        self.last_end = (end, times);
        let error = Causes(error).to_string();
        let mut complete = false;
        // The random part keeps runners from retrying at the same moment.
        let retry = spread(self.options.retry_every, 1.0..1.5);
        match end {
            End::Missing => {
                // Deleting the kind deletes its objects.
                self.objects.replace_all(Vec::new());
                self.is_schema_missing = false;
                (pause, complete) = (retry, true);
                if times == 1 {
                    tracing::info!(
                        "the cluster has no FunctionConfigs: functions run as flags and files say"
                    );
                }
            }
            // The permission may be granted right now: only the next refusal counts.
            End::Forbidden if times == 1 => {}
            End::Forbidden => {
                (pause, complete) = (retry, true);
                if times > 2 {
                    tracing::debug!(error, "FunctionConfigs are still not watched");
                } else {
                    let how = if listed_for.is_some() { "only listed now and then" } else { "not seen" };
                    tracing::warn!(error, "FunctionConfigs are {how}; {RIGHTS}: list and watch on {PLURAL}");
                }
            }
            End::Failed if times > 1 => {
                tracing::debug!(error, "the watch of FunctionConfigs is still broken");
            }
            End::Failed => {
                tracing::warn!(error, "the watch of FunctionConfigs broke; what is known stays in effect");
            }
        }
        self.start_at = Instant::now() + pause;
        complete
    }

    /// Sends the objects in effect if they have changed, or if they are `complete` for the first
    /// time.
    fn publish(&mut self, complete: bool) {
        if let Some(configs) = self.objects.configs(now()) {
            tracing::info!(objects = self.objects.counts().objects, "using FunctionConfigs");
            self.state.send_replace(Some(configs));
            // The conflicts may have changed.
            self.objects.look_at_all();
        } else if complete && self.state.borrow().is_none() {
            self.state.send_replace(Some(Arc::default()));
        }
        let Counts { objects, problems, broken } = self.objects.counts();
        self.metrics.function_configs(objects, problems);
        self.metrics.config_valid("functionconfigs", broken == 0);
    }
}

async fn kind_of_end(client: &Client, error: &FollowError) -> End {
    let api_version = format!("{GROUP}/{VERSION}");
    let is_missing = || has_no_such_kind(client, &api_version, PLURAL);
    match (error, error.code()) {
        // A 404 alone may come from an API server that does not know the kind yet. After a failed
        // watch, the next list shows whether the kind is missing.
        (FollowError::List(_), Some(404)) | (_, Some(403)) if is_missing().await => End::Missing,
        (_, Some(403)) => End::Forbidden,
        _ => End::Failed,
    }
}

/// Logs the result of a write. Repeated failures of one kind give one warning, until such a write
/// succeeds. `failing` holds these kinds.
fn log_write(failing: &mut HashSet<&'static str>, (name, write, result): &Written) {
    let (resource, effect) = match write {
        Write::Status { .. } => ("functionconfigs/status", "so its status is old"),
        Write::Finalizer { .. } => (PLURAL, "so its finalizer keeps it from being deleted"),
    };
    let Err(error) = result else {
        failing.remove(resource);
        return tracing::debug!(name, ?write, "written to a FunctionConfig");
    };
    let (code, error) = (error.code(), Causes(error).to_string());
    // Another writer was faster: the watch reports the change.
    let is_normal = matches!(code, Some(404 | 409 | 422));
    if is_normal || !failing.insert(resource) {
        return tracing::debug!(name, error, "a FunctionConfig is not written to");
    }
    let advice = if code == Some(403) { format!("; {RIGHTS}: patch on {resource}") } else { String::new() };
    tracing::warn!(name, error, "a FunctionConfig is not written to, {effect}{advice}");
}
