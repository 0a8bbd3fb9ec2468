//! Keeps the pool's configuration in step with the settings, and with what pods are made from.

pub(crate) mod ranges;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use porch_fn_image::Image;
use porch_fn_pool::{Config, Event, ImageKey, Origin, Override, Overrides, ShardKey};
use porch_fn_settings::{Resolved, Settings};
use tokio::sync::{mpsc, watch};

use super::backend::Catalog;
use crate::settings::{Current, changed};

/// Knows what pods are made from.
pub(crate) trait Making: Send + 'static {
    /// What they are made from from now on, under these settings.
    fn made_from(&mut self, current: &Current) -> MadeFrom;

    /// Waits until pods are made from something else, whatever the settings say.
    fn changed(&mut self) -> impl Future<Output = Changed> + Send;
}

/// The images whose pods are made from something else now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Any: [`Making::made_from`] has another answer.
    All,
    /// This one: its last answer says so.
    One(ImageKey),
}

/// What the pods of an image are made from.
pub(crate) type MadeFrom = Box<dyn Fn(&ImageKey) -> Option<Origin> + Send + Sync>;

/// The pool's configuration: `base`, and what settings and templates say of each image.
pub(crate) fn config(
    base: &Config,
    settings: &Arc<Settings>,
    resolved: &Resolved,
    made_from: MadeFrom,
) -> Config {
    let keep = settings.kept(resolved).into_iter().map(|(image, _)| {
        let image = ImageKey::from(image.as_str());
        (image.clone(), ShardKey::from(&image))
    });
    let keep = Arc::new(keep.collect());
    let settings = Arc::clone(settings);
    let one = move |image: &ImageKey| {
        let template = made_from(image);
        // Keys of the pool are canonical: there is no prefix to add.
        let Ok(parsed) = Image::parse(image.as_str(), "") else {
            return Override { template, ..Override::default() };
        };
        let effective = settings.of(&parsed);
        Override {
            max_pods: effective.max_pods.value,
            min_pods: effective.min_pods.value,
            waitlist: effective.waitlist.value,
            per_pod: effective.per_pod.value,
            queue: effective.queue.value,
            ttl: effective.ttl.value,
            template,
        }
    };
    Config { overrides: Overrides::by(one), keep, ..base.clone() }
}

/// Starts pods for images that settings name (`--warm-up-pod-cache`), each once: those that are there at the start, and
/// those that appear later.
#[derive(Debug)]
pub(crate) struct WarmUp {
    catalog: Arc<dyn Catalog>,
    known: HashSet<Image>,
}

impl WarmUp {
    pub(crate) fn new(catalog: Arc<dyn Catalog>) -> Self {
        Self { catalog, known: HashSet::new() }
    }

    /// The images of `settings` that are new, and can have pods. One that vanished and comes again is new again.
    pub(crate) fn news(&mut self, settings: &Settings, resolved: &Resolved) -> Vec<ImageKey> {
        let named = settings.warm(resolved);
        let mut news = Vec::new();
        for image in named.iter().filter(|image| !self.known.contains(image)) {
            if self.catalog.knows(image) {
                news.push(ImageKey::from(image.as_str()));
            } else {
                tracing::warn!(%image, "cannot be warmed up: no pod can be made of it");
            }
        }
        self.known = named.into_iter().collect();
        news
    }
}

/// Tells the pool of every change, for ever; `resolved` is what [`ranges`] has found out.
/// `configured` turns true when it was told of complete settings; before that nothing is warmed up,
/// since no pod can be made.
pub(crate) async fn follow(
    base: Config,
    mut making: impl Making,
    mut current: watch::Receiver<Current>,
    mut resolved: watch::Receiver<Resolved>,
    mut warm_up: Option<WarmUp>,
    configured: watch::Sender<bool>,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut settings_change = true;
    loop {
        tokio::select! {
            changed = making.changed() => if let Changed::One(image) = changed {
                if events.send(Event::Remade { image }).is_err() {
                    return;
                }
                continue;
            },
            changed = current.changed(), if settings_change => settings_change = changed.is_ok(),
            () = changed(&mut resolved) => {}
        }
        let now = current.borrow_and_update().clone();
        let resolved = resolved.borrow_and_update().clone();
        let made_from = making.made_from(&now);
        if events.send(Event::Configure(config(&base, &now.settings, &resolved, made_from))).is_err() {
            return;
        }
        told(&now, &resolved, &mut warm_up, &configured, &events);
    }
}

/// What there is to do once the pool was told of `current`.
pub(crate) fn told(
    current: &Current,
    resolved: &Resolved,
    warm_up: &mut Option<WarmUp>,
    configured: &watch::Sender<bool>,
    events: &mpsc::UnboundedSender<Event>,
) {
    if !current.complete {
        return;
    }
    configured.send_if_modified(|configured| !std::mem::replace(configured, true));
    if let Some(warm_up) = warm_up {
        self::warm_up(warm_up.news(&current.settings, resolved), events);
    }
}

/// Asks the pool for one pod of each.
fn warm_up(images: Vec<ImageKey>, events: &mpsc::UnboundedSender<Event>) {
    for image in images {
        let shard_key = ShardKey::from(&image);
        // A pool that is gone has nothing to warm.
        let _ = events.send(Event::Warm { image, shard_key });
    }
}
