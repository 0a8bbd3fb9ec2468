//! FunctionConfigs of newer Porch, out of the API server: those of the function namespace are followed, and told what
//! came of them.
//!
//! ```text
//!           schema ─┐
//!   list and watch ─┴► known ─► FunctionConfigs, to whoever makes the pool's configuration
//!                        └────► work ─► writes ─► status, finalizer
//! ```
//!
//! All but this file, `look` and the request of `schema` is pure. A cluster without the kind has
//! none, and so has one that forbids to look: functions run as the flags and files say. One that
//! does not answer is another thing: nobody knows then.

mod known;
mod look;
mod schema;
#[cfg(test)]
mod tests;
mod work;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use parking_lot::Mutex;
use porch_fn_pool::{Ownership, ShardKey};
use porch_fn_settings::{FunctionConfigs, Setting, Source as SettingSource, TagSemantics};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::client::{Causes, RequestError, bounded};
use super::now;
pub(crate) use known::Counts;
use known::{Judged, Known, MAX_OBJECTS};
use schema::SchemaError;
use work::{Object, Work};
use writes::{Next, Writes};

const GROUP: &str = "config.porch.kpt.dev";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "functionconfigs";
const FLAG: &str = "functionconfig-tags";

/// How often FunctionConfigs are listed anew: how long a runner may take to notice another schema.
pub(crate) const RELIST_EVERY: Duration = Duration::from_mins(10);
/// How long the schema is waited for. The API server publishes that of a new kind some seconds
/// after the kind, and may be busy.
pub(crate) const SCHEMA_WITHIN: Duration = Duration::from_secs(20);
const RIGHTS: &str = "grant the runner's service account the Role of the deployment manifests in the function namespace, \
                      with API group config.porch.kpt.dev";

/// Where FunctionConfigs are, and how to read them.
pub(crate) struct Source {
    pub(crate) client: Client,
    /// The function namespace.
    pub(crate) namespace: String,
    /// What an empty prefix stands for.
    pub(crate) default_prefix: String,
    /// What tags mean (`--functionconfig-tags`); `None`: what the schema says.
    pub(crate) semantics: Option<TagSemantics>,
    /// How often to look where there is no such kind, or no right to see it, or the schema does not
    /// say.
    pub(crate) retry_every: Duration,
    /// How often to list anew although nothing broke, for the sake of the schema: it may change
    /// while nothing else does.
    pub(crate) relist_every: Duration,
    /// How long to wait for a schema that cannot be read at the moment, before tags are taken as in
    /// Porch 1.6.
    pub(crate) schema_within: Duration,
}

/// Follows the FunctionConfigs for ever. `state` has the ones in effect, from the first answer on, whichever it is. What breaks by an edit stays in effect as it was. The owner of an object's name writes its status.
pub(crate) async fn follow(
    source: Source,
    owned: watch::Receiver<Ownership>,
    state: watch::Sender<Option<Arc<FunctionConfigs>>>,
    counts: watch::Sender<Counts>,
) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "FunctionConfig"));
    let followed = Followed {
        api: Api::namespaced_with(source.client.clone(), &source.namespace, &kind),
        client: source.client,
        asks_schema: source.semantics.is_none(),
        schema_within: source.schema_within,
        inner: Mutex::new(Inner {
            known: Known::new(source.default_prefix, first_semantics(source.semantics)),
            writes: Writes::default(),
            answered: false,
            warned: false,
        }),
        more: Notify::new(),
        state,
        counts,
    };
    tokio::join!(followed.look(source.retry_every, source.relist_every), followed.write(owned));
}

/// What tags mean until the schema says otherwise.
fn first_semantics(flag: Option<TagSemantics>) -> Setting<TagSemantics> {
    match flag {
        Some(semantics) => Setting::new(semantics, SettingSource::Flag(FLAG)),
        None => Setting::new(TagSemantics::default(), SettingSource::NoSchema),
    }
}

struct Followed {
    api: Api<DynamicObject>,
    client: Client,
    /// Whether it is the schema that says what tags mean.
    asks_schema: bool,
    schema_within: Duration,
    inner: Mutex<Inner>,
    /// There may be something to write.
    more: Notify,
    state: watch::Sender<Option<Arc<FunctionConfigs>>>,
    counts: watch::Sender<Counts>,
}

struct Inner {
    known: Known,
    writes: Writes,
    /// Whether it is known what there is.
    answered: bool,
    /// Whether the log says that the schema does not say what tags mean: it is not waited for
    /// again.
    warned: bool,
}

/// What a look told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// All there is.
    All,
    /// Something.
    Some,
}

// === impl Followed ===

impl Followed {
    /// Takes up a change, and tells everyone: first whoever makes pods of it, then the API server.
    fn take_up(&self, change: impl FnOnce(&mut Inner) -> Told) {
        let mut inner = self.inner.lock();
        let told = change(&mut inner);
        let first = told == Told::All && !inner.answered;
        inner.answered |= first;
        match inner.known.configs(now()) {
            Some(configs) => {
                tracing::info!(objects = inner.known.counts().objects, "using FunctionConfigs");
                self.state.send_replace(Some(configs));
                inner.look_at_all();
            }
            None if first => drop(self.state.send_replace(Some(Arc::default()))),
            None => {}
        }
        let counts = inner.known.counts();
        self.counts.send_if_modified(|before| std::mem::replace(before, counts) != counts);
        self.more.notify_one();
    }

    /// Learns what tags mean, before what was listed is read. What was learned before holds if that
    /// fails.
    async fn learn_semantics(&self) {
        // Only the first objects wait for it, after a start and when the kind is new.
        let first = {
            let inner = self.inner.lock();
            inner.known.semantics().source == SettingSource::NoSchema && !inner.warned
        };
        let within = if first { self.schema_within } else { Duration::ZERO };
        let answer = self.schema(within).await;
        let mut inner = self.inner.lock();
        let known = inner.known.semantics().source == SettingSource::Schema;
        match answer {
            Ok(semantics) => {
                if !known || inner.known.semantics().value != semantics {
                    tracing::info!(%semantics, "the schema of FunctionConfigs says what their tags mean");
                }
                inner.read_tags_as(Setting::new(semantics, SettingSource::Schema));
            }
            Err(error) if known || std::mem::replace(&mut inner.warned, true) => {
                tracing::debug!(%error, "the schema of FunctionConfigs still does not say what their tags mean");
            }
            Err(error) => tracing::warn!(
                %error,
                "the schema of FunctionConfigs does not say what their tags mean: they are taken as in Porch 1.6. Set \
                 --{FLAG}, or let the runner's service account get /openapi/v3/apis/{GROUP}/{VERSION}, as ClusterRole \
                 system:discovery does"
            ),
        }
    }

    /// Reads the schema. After a failure that may pass it tries again, for as long as `within`
    /// says.
    async fn schema(&self, within: Duration) -> Result<TagSemantics, SchemaError> {
        let give_up = Instant::now() + within;
        let mut pause = within / 20;
        loop {
            let answer = schema::read(&self.client).await;
            let lasts = match &answer {
                Ok(_) | Err(SchemaError::Silent) => true,
                Err(SchemaError::Refused(status)) => *status == StatusCode::FORBIDDEN,
                Err(_) => false,
            };
            // Up to a half more, so that runners do not ask in step.
            let next = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 2.0);
            if lasts || next >= give_up {
                return answer;
            }
            if let Err(error) = answer {
                tracing::debug!(%error, "the schema of FunctionConfigs is asked for again");
            }
            sleep_until(next).await;
            pause = (pause * 2).min(within / 4);
        }
    }

    async fn write(&self, mut owned: watch::Receiver<Ownership>) {
        let mut failing = Failing::default();
        let mut owners_change = true;
        loop {
            let next = {
                let owned = owned.borrow().clone();
                let owns = |name: &str| owned.owns(&ShardKey::from(name));
                let Inner { known, writes, .. } = &mut *self.inner.lock();
                match writes.next(Instant::now(), |name| known.work(name, owns(name))) {
                    Next::Write(name, work) => match known.object(&name).map(|object| work.patch(object)) {
                        Some(patch) => Ok((name, work, patch)),
                        None => continue,
                    },
                    Next::At(at) => Err(Some(at)),
                    Next::Nothing => Err(None),
                }
            };
            match next {
                Ok((name, work, patch)) => {
                    let result = self.request(&name, &work, patch).await;
                    failing.told(&name, &work, result.as_ref().err());
                    let mut inner = self.inner.lock();
                    if result.is_ok() {
                        inner.known.record_write(&name, &work);
                    }
                    inner.writes.tried(name, work, result.is_ok(), Instant::now());
                }
                Err(at) => {
                    tokio::select! {
                        () = self.more.notified() => {}
                        changed = owned.changed(), if owners_change => {
                            owners_change = changed.is_ok();
                            self.inner.lock().look_at_all();
                        }
                        () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
                    }
                }
            }
        }
    }

    async fn request(&self, name: &str, work: &Work, patch: Value) -> Result<(), RequestError> {
        let params = PatchParams::default();
        match work {
            Work::Status { .. } => {
                bounded(self.api.patch_status(name, &params, &Patch::Merge(patch))).await?;
            }
            Work::Finalizer { .. } => {
                let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
                bounded(self.api.patch(name, &params, &Patch::Json::<()>(patch))).await?;
            }
        }
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    fn seen(&mut self, object: Option<Object>) {
        let Some(object) = object else { return };
        self.writes.look_at(&object.name);
        let name = object.name.clone();
        let judged = self.known.seen(object);
        report(&name, judged);
    }

    fn read_tags_as(&mut self, semantics: Setting<TagSemantics>) {
        for (name, judged) in self.known.read_tags_as(semantics) {
            report(&name, Some(judged));
        }
    }

    fn gone(&mut self, name: Option<String>) {
        if let Some(name) = name {
            self.known.gone(&name);
            self.writes.forget(&name);
        }
    }

    fn listed(&mut self, objects: Vec<Object>, beyond: usize) -> Told {
        let there = objects.iter().map(|object| object.name.clone()).collect();
        for name in self.known.others(&there) {
            self.gone(Some(name));
        }
        for object in objects {
            self.seen(Some(object));
        }
        if beyond > 0 {
            tracing::error!(ignored = beyond, "there are more than {MAX_OBJECTS} FunctionConfigs");
        }
        Told::All
    }

    fn look_at_all(&mut self) {
        for name in self.known.names() {
            self.writes.look_at(name);
        }
    }
}

/// Has the log say what became of an object.
fn report(name: &str, judged: Option<Judged>) {
    match judged {
        Some(Judged::Broken { error, kept }) => {
            tracing::error!(name, error, kept, "a FunctionConfig cannot be used");
        }
        Some(Judged::Mended) => tracing::info!(name, "a FunctionConfig can be used again"),
        Some(Judged::TooMany) => {
            tracing::error!(name, "a FunctionConfig is ignored: there are more than {MAX_OBJECTS}");
        }
        None => {}
    }
}

/// What is going wrong, so that the log says it once.
#[derive(Debug, Default)]
struct Failing {
    status: bool,
    finalizer: bool,
}

// === impl Failing ===

impl Failing {
    fn told(&mut self, name: &str, work: &Work, error: Option<&RequestError>) {
        let (failing, resource, left) = match work {
            Work::Status { .. } => (&mut self.status, "functionconfigs/status", "so its status is old"),
            Work::Finalizer { .. } => {
                (&mut self.finalizer, PLURAL, "so its finalizer keeps it from being deleted")
            }
        };
        let Some(error) = error else {
            *failing = false;
            tracing::debug!(name, ?work, "written to a FunctionConfig");
            return;
        };
        let code = error.code();
        let error = Causes(error).to_string();
        match code {
            // Somebody else was faster, and what became of the object is about to be heard of.
            Some(404 | 409 | 422) => tracing::debug!(name, error, "a FunctionConfig has changed"),
            _ if *failing => tracing::debug!(name, error, "a FunctionConfig is still not written to"),
            Some(403) => {
                *failing = true;
                tracing::warn!(
                    name,
                    error,
                    "a FunctionConfig is not written to, {left}; {RIGHTS}: patch on {resource}"
                );
            }
            _ => {
                *failing = true;
                tracing::warn!(name, error, "a FunctionConfig is not written to yet, {left}");
            }
        }
    }
}
