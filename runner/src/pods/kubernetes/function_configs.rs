//! Follows the FunctionConfigs of the function namespace, and writes their status.
//!
//! ```text
//!   schema, list and watch ─► objects ─► FunctionConfigs ─► settings
//!                                └─────► write ─► status, finalizer
//! ```
//!
//! One task does it all; `objects` and `write` have no I/O. A cluster without the kind has no
//! FunctionConfigs, and so has a runner without the right to see them: functions run as the flags and
//! files say. While the API server does not answer, nothing is known.

mod objects;
mod schema;
#[cfg(test)]
mod tests;
mod watch;
mod write;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use porch_fn_pool::OwnedShards;
use porch_fn_settings::{FunctionConfigs, Setting, Source, TagSemantics};
use serde_json::Value;
use tokio::sync::watch as watched;
use tokio::time::{Instant, sleep_until};

use self::objects::{Counts, Objects};
use self::watch::Watch;
use self::write::Write;
use super::client::{Causes, RequestError, bounded};
use crate::clock::now;
use crate::metrics::Metrics;
use crate::settings::changed;

const GROUP: &str = "config.porch.kpt.dev";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "functionconfigs";
const FLAG: &str = "functionconfig-tags";
const RIGHTS: &str = "grant the runner's service account the Role of the deployment manifests in the function namespace, \
                      with API group config.porch.kpt.dev";

/// How often the schema is read: how long a runner may take to notice another one.
const SCHEMA_EVERY: Duration = Duration::from_mins(10);
/// How long a schema is waited for that cannot be read at the moment: the API server publishes that of
/// a new kind some seconds after the kind, and may be busy. Then tags are read as in Porch 1.6.
const SCHEMA_WITHIN: Duration = Duration::from_secs(20);

/// Where FunctionConfigs are, and how to read them.
pub(crate) struct Options {
    pub(crate) client: Client,
    /// The function namespace.
    pub(crate) namespace: String,
    /// What an empty prefix stands for.
    pub(crate) default_prefix: String,
    /// What tags mean (`--functionconfig-tags`); `None`: the schema decides.
    pub(crate) semantics: Option<TagSemantics>,
    /// The pause before another look when the kind, the right to see it or the schema is missing.
    pub(crate) retry_every: Duration,
}

/// Follows the FunctionConfigs for ever. `state` gets the objects in effect, from the first answer of
/// the API server on. An object that breaks stays in effect in its last good state. The ring owner of
/// an object's name writes its status.
pub(crate) async fn follow(
    options: Options,
    mut owned: watched::Receiver<OwnedShards>,
    state: watched::Sender<Option<Arc<FunctionConfigs>>>,
    metrics: Arc<Metrics>,
) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "FunctionConfig"));
    let api: Api<DynamicObject> = Api::namespaced_with(options.client.clone(), &options.namespace, &kind);
    let mut watch = Watch::new(api.clone());
    let semantics = match options.semantics {
        Some(semantics) => Setting::new(semantics, Source::Flag(FLAG)),
        None => Setting::new(TagSemantics::default(), Source::NoSchema),
    };
    let mut followed = Followed {
        objects: Objects::new(options.default_prefix.clone(), semantics),
        options,
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
            writing = next.map(|(name, write, patch)| send(api.clone(), name, write, patch).boxed());
        }
        let (next_write, schema_at) = (followed.objects.next_look(), followed.schema_at);
        tokio::select! {
            event = watch.next() => followed.take(&mut watch, event).await,
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

struct Followed {
    options: Options,
    objects: Objects,
    /// When the schema is read again; `None`: it is not needed, or read with the next list.
    schema_at: Option<Instant>,
    /// Whether the log says that the schema is missing. Then it is not waited for again.
    is_schema_missing: bool,
    state: watched::Sender<Option<Arc<FunctionConfigs>>>,
    metrics: Arc<Metrics>,
}

// === impl Followed ===

impl Followed {
    /// Sends the objects in effect if they have changed, or if they are `complete` for the first
    /// time.
    fn publish(&mut self, complete: bool) {
        if let Some(configs) = self.objects.configs(now()) {
            tracing::info!(objects = self.objects.counts().objects, "using FunctionConfigs");
            self.state.send_replace(Some(configs));
            // Conflicts may be others.
            self.objects.look_at_all();
        } else if complete && self.state.borrow().is_none() {
            self.state.send_replace(Some(Arc::default()));
        }
        let Counts { objects, problems, broken } = self.objects.counts();
        self.metrics.function_configs(objects, problems);
        self.metrics.config_valid("functionconfigs", broken == 0);
    }
}

/// Logs the result of a write. Failures of one kind are one warning until such a write succeeds:
/// `failing` has the kinds.
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
