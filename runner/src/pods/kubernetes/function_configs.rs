//! Follows the FunctionConfigs of the function namespace, and writes their status.
//!
//! ```text
//!   schema, list and watch ─► objects ─► FunctionConfigs ─► settings
//!                                └─────► write ─► status, finalizer
//! ```
//!
//! All this is one task; `objects` and `write` have no I/O. If the cluster lacks the kind, or the
//! runner may not list it, only flags and files apply. Until the API server answers, it is unknown
//! whether FunctionConfigs exist.

mod objects;
mod schema;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
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
use super::client::{Causes, bounded, has_no_such_kind};
use crate::clock::now;
use crate::metrics::Metrics;
use crate::settings::changed;

const GROUP: &str = "config.porch.kpt.dev";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "functionconfigs";
const FLAG: &str = "functionconfig-tags";
const RIGHTS: &str = "grant the runner's service account the Role of the deployment manifests in the function namespace, \
                      with API group config.porch.kpt.dev";

/// How often the schema is read. A runner may notice a changed schema only after this time.
const SCHEMA_EVERY: Duration = Duration::from_mins(10);
/// How long the runner waits for a schema that it cannot read yet. After that, it reads tags like
/// Porch 1.6. The API server may be busy, and publishes a new kind's schema some seconds after the
/// kind.
const SCHEMA_WITHIN: Duration = Duration::from_secs(20);
const SCHEMA_PAUSE: Duration = Duration::from_secs(2);

/// Maximum number of objects in one page of a list. Pages are small because objects may be large.
const PAGE: u32 = 100;
/// How long one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between attempts before the first answer. The first pod of every function
/// waits for that answer.
const LAST_PAUSE_AT_START: Duration = Duration::from_secs(1);

/// Where FunctionConfigs are, and how to read them.
pub(crate) struct Options {
    pub(crate) client: Client,
    /// The function namespace.
    pub(crate) namespace: String,
    /// The image prefix that an empty prefix in a FunctionConfig stands for.
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
        last_end: End::Failed,
        schema_at: None,
        is_schema_missing: false,
        failing: HashSet::new(),
        state,
        metrics,
    };
    followed.metrics.config_valid("functionconfigs", true);
    loop {
        let next_write = followed.objects.next_write(&owned.borrow_and_update());
        let (write_at, schema_at) = (next_write.as_ref().map(|(at, ..)| *at), followed.schema_at);
        tokio::select! {
            biased;
            event = followed.next() => followed.process(event).await,
            () = changed(&mut owned) => {}
            Some(()) = OptionFuture::from(schema_at.map(sleep_until)) => {
                followed.read_schema().await;
                followed.publish(false);
            }
            Some(()) = OptionFuture::from(write_at.map(sleep_until)) => {
                if let Some((_, name, write, patch)) = next_write {
                    followed.write(&name, &write, patch).await;
                }
            }
        }
    }
}

/// An event of the watch: a change, or the error that ended the watch.
type WatchEvent = Result<Change<DynamicObject>, FollowError>;

/// Why a watch ended.
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
    /// When the next follower (list and watch) starts.
    start_at: Instant,
    /// Counts the consecutive watches that ended for the reason in `last_end`.
    backoff: Restarts,
    last_end: End,
    /// When the schema is read again; `None`: it is not needed, or read with the next list.
    schema_at: Option<Instant>,
    /// Whether a missing schema has been logged. If so, the runner does not wait for it again.
    is_schema_missing: bool,
    /// The resources to which the last write failed.
    failing: HashSet<&'static str>,
    state: watched::Sender<Option<Arc<FunctionConfigs>>>,
    metrics: Arc<Metrics>,
}

// === impl Followed ===

impl Followed {
    /// Returns the next event. Dropping the future loses no event.
    async fn next(&mut self) -> WatchEvent {
        if self.follower.is_none() {
            sleep_until(self.start_at).await;
        }
        let pages = ListParams::default().limit(PAGE);
        let new = || Follower::new(self.api.clone(), pages, PAGE_TIMEOUT, |_| ());
        self.follower.get_or_insert_with(new).next().await
    }

    /// Processes an event and the next events that are ready.
    async fn process(&mut self, event: WatchEvent) {
        let (mut event, mut complete) = (Some(event), false);
        while let Some(next) = event {
            complete |= self.apply(next).await;
            event = self.next().now_or_never();
        }
        self.publish(complete);
    }

    /// Applies an event. Returns `true` if all objects are known now, or if no list will follow
    /// soon.
    async fn apply(&mut self, event: WatchEvent) -> bool {
        match event {
            Ok(Change::Applied(object)) => self.objects.apply(Object::new(object)),
            Ok(Change::Deleted(object)) => self.objects.remove(&object.metadata.name.unwrap_or_default()),
            Ok(Change::Listed(list)) => {
                self.read_schema().await;
                self.objects.replace_all(list);
                return true;
            }
            Ok(Change::Expired) => {}
            Err(error) => return self.schedule_list(&error).await,
        }
        false
    }

    /// Schedules the next list after a watch has ended. Returns `true` if no list will follow soon,
    /// because the kind or the permission is missing.
    async fn schedule_list(&mut self, error: &FollowError) -> bool {
        let listed_for = self.follower.take().and_then(|follower| follower.listed_for());
        let end = kind_of_end(&self.options.client, error).await;
        if std::mem::replace(&mut self.last_end, end) != end {
            self.backoff = Restarts::default();
        }
        let mut pause = self.backoff.after(listed_for);
        if self.state.borrow().is_none() {
            pause = pause.min(spread(LAST_PAUSE_AT_START, 1.0..1.5));
        }
        let (times, error) = (self.backoff.failures(), Causes(error).to_string());
        match (end, times) {
            (End::Missing, 1) => {
                tracing::info!("the cluster has no FunctionConfigs: only flags and files apply");
            }
            (End::Forbidden, 2) => {
                let how = if listed_for.is_some() { "listed at intervals, not watched" } else { "not read" };
                tracing::warn!(error, "FunctionConfigs are {how}; {RIGHTS}: list and watch on {PLURAL}");
            }
            (End::Failed, 1) => {
                tracing::warn!(error, "FunctionConfigs watch interrupted: known objects stay in effect");
            }
            _ => tracing::debug!(error, "FunctionConfigs are still not watched"),
        }
        if end == End::Missing {
            // The cluster deletes the objects of a deleted kind.
            self.objects.replace_all(Vec::new());
            self.is_schema_missing = false;
        }
        // Somebody may be granting the permission at this moment, so the first refusal does not
        // count.
        let is_lasting = end == End::Missing || (end == End::Forbidden && times > 1);
        if is_lasting {
            // The random part keeps runners from retrying at the same moment.
            pause = spread(self.options.retry_every, 1.0..1.5);
        }
        self.start_at = Instant::now() + pause;
        is_lasting
    }

    /// Sends the objects in effect if they have changed, or if they are `complete` for the first
    /// time.
    fn publish(&mut self, complete: bool) {
        if let Some(configs) = self.objects.configs(now()) {
            tracing::info!(function_configs = self.objects.counts().objects, "using FunctionConfigs");
            self.state.send_replace(Some(configs));
        } else if complete && self.state.borrow().is_none() {
            self.state.send_replace(Some(Arc::default()));
        }
        let Counts { objects, problems, broken } = self.objects.counts();
        self.metrics.function_configs(objects, problems);
        self.metrics.config_valid("functionconfigs", broken == 0);
    }

    /// Sends a write, and records and logs its result. After a failure it logs no further warning
    /// for that resource until a write to it succeeds.
    async fn write(&mut self, name: &str, write: &Write, patch: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let (request, resource, effect) = match write {
            Write::Status { .. } => {
                let request = self.api.patch_status(name, &params, &patch).boxed();
                (request, "functionconfigs/status", "so its status is old")
            }
            Write::Finalizer => {
                let request = self.api.patch(name, &params, &patch).boxed();
                (request, PLURAL, "so its finalizer keeps it from being deleted")
            }
        };
        let result = bounded(request).await;
        self.objects.record_write(name, write, result.is_ok());
        let Err(error) = result else {
            self.failing.remove(resource);
            return tracing::debug!(function_config = name, ?write, "wrote to a FunctionConfig");
        };
        let (code, error) = (error.code(), Causes(&error).to_string());
        // These codes mean that another writer was faster. The watch reports that writer's change.
        let is_normal = matches!(code, Some(404 | 409 | 422));
        if is_normal || !self.failing.insert(resource) {
            return tracing::debug!(function_config = name, error, "cannot write to a FunctionConfig");
        }
        let advice =
            if code == Some(403) { format!("; {RIGHTS}: patch on {resource}") } else { String::new() };
        tracing::warn!(function_config = name, error, "cannot write to a FunctionConfig, {effect}{advice}");
    }
}

async fn kind_of_end(client: &Client, error: &FollowError) -> End {
    let api_version = format!("{GROUP}/{VERSION}");
    let is_missing = || has_no_such_kind(client, &api_version, PLURAL);
    match (error, error.code()) {
        // A list also fails with 404 if the API server has not loaded the kind yet. So this checks
        // the list of kinds. A watch with 404 needs no check, because the next list of objects
        // shows whether the kind is missing.
        (FollowError::List(_), Some(404)) | (_, Some(403)) if is_missing().await => End::Missing,
        (_, Some(403)) => End::Forbidden,
        _ => End::Failed,
    }
}
