//! Keeps the pool's configuration in step with the files and templates that it comes from.

use std::sync::Arc;

use porch_fn_pool::{Config, Event, ImageKey, Override, Overrides, Template};
use tokio::sync::{mpsc, watch};

use super::cache_config::{self, CacheConfig};

/// Knows what pods are made from.
pub(crate) trait Making: Send + 'static {
    /// What they are made from from now on, under this `--pod-cache-config`.
    fn made_from(&mut self, cache: &CacheConfig) -> MadeFrom;

    /// Waits until [`made_from`](Self::made_from) has another answer, whatever the file says.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// What the pods of all images are made from.
pub(crate) struct MadeFrom {
    pub(crate) all: Template,
    /// What the pods of one image are made from, if that differs.
    pub(crate) one: OfOneImage,
}

type OfOneImage = Box<dyn Fn(&ImageKey) -> Option<Template> + Send + Sync>;

/// The pool's configuration: `base`, and what the file and the templates say.
pub(crate) fn config(base: &Config, cache: &CacheConfig, made_from: MadeFrom) -> Config {
    let overrides = cache_config::overrides(&cache.entries);
    let MadeFrom { all, one } = made_from;
    Config {
        template: all,
        overrides: Overrides::by(move |image: &ImageKey| {
            let limits = overrides.get(image).cloned().unwrap_or_default();
            Override { template: one(image), ..limits }
        }),
        ..base.clone()
    }
}

/// Tells the pool of every change, for ever.
pub(crate) async fn follow(
    base: Config,
    mut making: impl Making,
    mut cache: watch::Receiver<Arc<CacheConfig>>,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut file_changes = true;
    loop {
        tokio::select! {
            () = making.changed() => {}
            changed = cache.changed(), if file_changes => file_changes = changed.is_ok(),
        }
        let current = Arc::clone(&cache.borrow_and_update());
        let made_from = making.made_from(&current);
        if events.send(Event::Configure(config(&base, &current, made_from))).is_err() {
            return;
        }
    }
}
