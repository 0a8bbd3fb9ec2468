//! Function pods on Kubernetes: several runners share one set of pods, and the API server is the arbiter.
//!
//! ```text
//!   settings ───────┐
//!   template_source ┴► blueprint ─┐                        ┌─► client ─► API server
//!   metadata ◄─ moved_tags ───────┤► backend: one task per │
//!   orders of the pool ───────────┘   order, one per probe ┤─► probe ──► wrapper-server
//!                                        ▲                 └─► services
//!   watch ─► observe, crash ─► store ────┘
//!         └─► events to the pool
//! ```
//!
//! `template`, `spec`, `observe`, `crash` and `answers` are pure: objects and errors in, values out.
//! `function_configs` follows a source of the settings, and `pull_secret` keeps a Secret for the kubelet.

mod answers;
mod backend;
mod blueprint;
mod client;
mod clock;
mod crash;
#[cfg(test)]
mod fake;
pub(crate) mod function_configs;
pub(crate) mod metadata;
mod moved_tags;
pub mod names;
mod observe;
mod probing;
pub(crate) mod pull_secret;
mod services;
mod spec;
mod store;
mod template;
mod template_source;
mod times;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use porch_fn_image::Image;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_pool::{Event, ImageKey, OwnedShards, Time};
use porch_fn_settings::Settings;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio::sync::watch as watched;
use tokio::time::{Instant, timeout};

pub(crate) use backend::KubernetesBackend;
use backend::{Refusals, Shared};
use blueprint::{Blueprint, NoTemplate, PodFlags, TemplateState};
use client::Cluster;
use metadata::ImageSource;
pub(crate) use store::Connect;
use store::Store;
use template::Template;
use template_source::TemplateSource;
pub(crate) use template_source::Templates;

use super::configure::{OriginChange, OriginOf, Origins};
use crate::clock::now_ahead;
pub use crate::config::BASE_POD_TEMPLATE;
use crate::config::Flags;
use crate::metrics::Metrics;
use crate::settings::CurrentSettings;

/// How long the start waits to learn how far the API server's clock is ahead.
const FIRST_CLOCK_WITHIN: Duration = Duration::from_secs(2);
/// How long the start waits for the template: with it, the first configuration of the pool is the right one.
const FIRST_TEMPLATE_WITHIN: Duration = Duration::from_secs(5);

/// Whether a runner can make pods from what the ConfigMap of `--function-pod-template` holds.
///
/// # Errors
/// One line with the point of the template's contract that is broken. `Ok`: what should be fixed all
/// the same.
pub fn check_template(data: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    Template::from_config_map(data).map(|template| template.warnings)
}

/// What the pods' part of the runner gets from its other parts.
pub(crate) struct Surroundings<'a> {
    pub(crate) flags: &'a Flags,
    /// What pods are made from.
    pub(crate) templates: Templates,
    /// How pods are reached.
    pub(crate) connect: Connect,
    /// The name of the pull secret, with `--enable-private-registries`.
    pub(crate) pull_secret: Option<String>,
    pub(crate) images: Arc<ImageSource>,
    /// The settings at the start.
    pub(crate) settings: Arc<Settings>,
    /// Which functions are this runner's.
    pub(crate) owned: watched::Receiver<OwnedShards>,
    /// With `pull_secret`: false while pods should wait for it.
    pub(crate) secret_written: Option<watched::Receiver<bool>>,
    /// To the pool.
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The runner's part of a cluster, before its pool starts.
pub(crate) struct Kubernetes {
    pub(crate) backend: KubernetesBackend,
    /// True once all pods are known.
    pub(crate) synced: watched::Receiver<bool>,
    /// What pods are made from.
    pub(crate) blueprints: Blueprints,
}

/// Makes a new blueprint whenever something changes that goes into it.
pub(crate) struct Blueprints {
    templates: watched::Receiver<TemplateState>,
    images: Arc<ImageSource>,
    image_changes: broadcast::Receiver<Image>,
    current: watched::Sender<Arc<Blueprint>>,
    flags: PodFlags,
    started: Time,
}

/// Starts what runs besides the pool, in `tasks`.
pub(crate) async fn start(client: &Client, surroundings: Surroundings<'_>, tasks: &mut Tasks) -> Kubernetes {
    let Surroundings { flags, templates, images, owned, metrics, .. } = surroundings;
    let ahead = timeout(FIRST_CLOCK_WITHIN, clock::ahead(client)).await.ok().flatten().unwrap_or_default();
    tasks.keep(tracing::info_span!("clock"), clock::follow(client.clone(), Arc::clone(&metrics)));
    let namespace = match &templates {
        Templates::ConfigMap(_) if flags.namespace.is_empty() => client.default_namespace().to_owned(),
        Templates::ConfigMap(_) => flags.namespace.clone(),
        Templates::Objects { .. } => flags.pod_namespace.clone(),
    };
    let started = Instant::now();
    let source = TemplateSource { client: client.clone(), namespace, templates, started };
    let (template, mut templates) = watched::channel(Err(NoTemplate::Unread));
    let follow = source.follow(flags.scan_interval.into(), template, metrics);
    tasks.keep(tracing::info_span!("template"), follow);
    // Without it the runner starts all the same: pods that are there can serve.
    let _ = timeout(FIRST_TEMPLATE_WITHIN, templates.changed()).await;

    let started = now_ahead(ahead);
    let pod_flags =
        PodFlags { max_message: flags.max_request_body_size, pull_secret: surroundings.pull_secret };
    // Until settings are complete: FunctionConfigs may change the template.
    let early = Err(NoTemplate::FunctionConfigsUnread);
    let first = Blueprint::new(early, pod_flags.clone(), surroundings.settings, started, None);
    let (current, blueprint) = watched::channel(Arc::new(first));
    let by_service = surroundings.connect != Connect::PodIp;
    let shared = Arc::new(Shared {
        cluster: Cluster::new(client.clone(), &flags.pod_namespace),
        store: Store::new(surroundings.connect, Arc::clone(&images), surroundings.events),
        blueprint,
        images: Arc::clone(&images),
        pull_secret: surroundings.secret_written,
        refusals: Refusals::default(),
    });
    let (synced_sender, synced) = watched::channel(false);
    let watch_pods = watch::pods(Arc::clone(&shared), synced_sender);
    tasks.keep(tracing::info_span!("watch", of = "pods"), watch_pods);
    let moved = moved_tags::follow(Arc::clone(&shared), owned, flags.image_metadata_ttl.into());
    tasks.keep(tracing::info_span!("tags"), moved);
    let held = Arc::clone(&shared);
    tasks.keep(tracing::info_span!("idle connections"), async move { held.store.follow_idle().await });
    let held = Arc::clone(&shared);
    tasks.keep(tracing::info_span!("ending"), async move { held.look_after_ending().await });
    if by_service {
        tasks.keep(tracing::info_span!("watch", of = "services"), watch::services(Arc::clone(&shared)));
    }
    let image_changes = images.changes();
    let blueprints = Blueprints { templates, images, image_changes, current, flags: pod_flags, started };
    Kubernetes { backend: KubernetesBackend::new(shared, ahead), synced, blueprints }
}

// === impl Blueprints ===

impl Origins for Blueprints {
    fn origins(&mut self, current: &CurrentSettings) -> OriginOf {
        let template = self.templates.borrow_and_update().clone();
        let settings = Arc::clone(&current.settings);
        let blueprint =
            Arc::new(Blueprint::new(template, self.flags.clone(), settings, self.started, current.time));
        // Before the pool hears of it: what it orders from then on is of this version.
        self.current.send_replace(Arc::clone(&blueprint));
        let images = Arc::clone(&self.images);
        Box::new(move |image| Some(blueprint.made_from(image, images.content(image))))
    }

    async fn changed(&mut self) -> OriginChange {
        tokio::select! {
            Ok(()) = self.templates.changed() => OriginChange::All,
            image = self.image_changes.recv() => match image {
                // Nothing but a template or a setting changes the pods of all images: after a start thousands become
                // known one by one.
                Ok(image) => OriginChange::One(ImageKey::from(image.as_str())),
                Err(RecvError::Lagged(_)) => OriginChange::All,
                Err(RecvError::Closed) => std::future::pending().await,
            },
            else => std::future::pending().await,
        }
    }
}
