//! The pool's desired configuration: settings, the recipes of pods, and the images that this runner
//! owns. A recipe ([`PodRecipe`]) identifies the configuration and the image content of a pod. The
//! pool replaces pods whose recipe is outdated.
//!
//! One task sends the configuration, and only when it is complete: every source of settings has
//! answered. With an incomplete configuration the pool would replace, collect and start the wrong
//! pods.

pub(crate) mod ranges;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;

use porch_fn_image::Image;
use porch_fn_pool::{
    Config, Event, ImageContent, ImageKey, ImageSettings, Limits, Lookup, OwnedShards, PodRecipe, ShardKey,
};
use porch_fn_settings::{Resolved, Settings};
use tokio::sync::{broadcast, mpsc, watch};

use super::images::ImageSource;
use crate::settings::{CurrentSettings, changed};

/// Returns the recipes of pods under these complete settings, with this template.
pub(crate) type Origins<T> = Box<dyn FnMut(&CurrentSettings, &T) -> OriginOf + Send>;

/// Returns the recipe of an image's pods with this content.
pub(crate) type OriginOf = Box<dyn Fn(&ImageKey, Option<ImageContent>) -> PodRecipe + Send + Sync>;

/// The pool's desired configuration.
pub(crate) struct Desired<T> {
    /// The configuration without per-image settings.
    pub(crate) base: Config,
    pub(crate) origins: Origins<T>,
    /// What pods are made of besides the settings and their images.
    pub(crate) template: watch::Receiver<T>,
    /// The images that this runner owns.
    pub(crate) owned: watch::Receiver<OwnedShards>,
    pub(crate) images: Arc<ImageSource>,
    /// Whether each image gets one pod before its first call (`--warm-up-pod-cache`).
    pub(crate) warm_up: bool,
    /// The images to warm up as of the last call of [`new_images`](Self::new_images).
    pub(crate) warmed_up: HashSet<Image>,
}

// === impl Desired ===

impl<T> Desired<T> {
    /// Returns the configuration under these settings; `resolved` comes from [`ranges`]. Under
    /// incomplete settings pods have no recipe.
    pub(crate) fn config(&mut self, current: &CurrentSettings, resolved: &Resolved) -> Config {
        let origin_of = current.complete.then(|| (self.origins)(current, &self.template.borrow_and_update()));
        let (settings, images) = (Arc::clone(&current.settings), Arc::clone(&self.images));
        let keys = |image: Image| (ImageKey::from(image.as_str()), ShardKey::from(image.as_str()));
        let kept_images = Arc::new(settings.kept(resolved).into_iter().map(keys).collect());
        let all = self.base.limits;
        let overrides = Lookup::by(move |image: &ImageKey| {
            let recipe = origin_of.as_ref().map(|origin_of| origin_of(image, images.content(image)));
            // The pool's keys are full image references, so they need no prefix.
            let limits = Image::parse(image.as_str(), "").map_or(all, |parsed| {
                let effective = settings.of(&parsed);
                Limits {
                    max_pods: effective.max_pods.value,
                    min_pods: effective.min_pods.value,
                    waitlist: effective.waitlist.value,
                    per_pod: settings.flags.per_pod.value,
                    queue: settings.flags.queue.value,
                    ttl: effective.ttl.value,
                }
            });
            Some(ImageSettings { limits, recipe: recipe.unwrap_or_default() })
        });
        Config { overrides, kept_images, ..self.base.clone() }
    }

    /// Returns the images to warm up that are new since the last call and can have pods.
    fn new_images(&mut self, settings: &Settings, resolved: &Resolved) -> Vec<ImageKey> {
        let named = if self.warm_up { settings.warm(resolved) } else { Vec::new() };
        let mut news = Vec::new();
        for image in named.iter().filter(|image| !self.warmed_up.contains(image)) {
            if self.images.knows(image) {
                news.push(ImageKey::from(image.as_str()));
            } else {
                tracing::warn!(%image, "the image is not warmed up: it cannot have pods");
            }
        }
        self.warmed_up = named.into_iter().collect();
        news
    }

    /// Sends complete configurations to the pool until the pool is gone. After the first
    /// configuration, it also sends the owned images and the images to warm up.
    pub(crate) async fn follow(
        mut self,
        mut current: watch::Receiver<CurrentSettings>,
        mut resolved: watch::Receiver<Resolved>,
        events: mpsc::UnboundedSender<Event>,
    ) {
        let mut changes = self.images.changes();
        let (mut is_configured, mut is_stale) = (false, true);
        // Errors are ignored: the channel closes when the pool is gone.
        let send = |event| drop(events.send(event));
        loop {
            let now = current.borrow_and_update().clone();
            let found = resolved.borrow_and_update().clone();
            if now.complete && is_stale {
                send(Event::Configure(self.config(&now, &found)));
                if !std::mem::replace(&mut is_configured, true) {
                    send(Event::Own(self.owned.borrow_and_update().clone()));
                }
                for image in self.new_images(&now.settings, &found) {
                    send(Event::Warm { shard_key: ShardKey::from(image.as_str()), image });
                }
            }
            is_stale = true;
            tokio::select! {
                // A changed image affects only its own recipe, which the last configuration already
                // gives. After a start, thousands of images become known one by one.
                image = next_image(&mut changes) => if let Some(image) = image {
                    send(Event::RecipeChanged(ImageKey::from(image.as_str())));
                    is_stale = false;
                },
                () = changed(&mut self.template) => {}
                () = changed(&mut self.owned), if is_configured => {
                    send(Event::Own(self.owned.borrow_and_update().clone()));
                    is_stale = false;
                }
                () = changed(&mut current) => {}
                () = changed(&mut resolved) => {}
                () = events.closed() => return,
            }
        }
    }
}

/// Waits for the next image. Returns `None` if images were missed.
async fn next_image(changes: &mut Option<broadcast::Receiver<Image>>) -> Option<Image> {
    match changes {
        None => pending().await,
        // The sender lives as long as the configuration.
        Some(changes) => changes.recv().await.ok(),
    }
}
