//! The operator's settings: defaults for all images, and overrides for one image.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::types::{ImageKey, Lookup, PodRecipe, ShardKey};

/// Shorter intervals would keep the pool busy with its own timers.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The pool's configuration. `Default` is the documented defaults, with an empty recipe.
#[derive(Clone, Debug)]
pub struct Config {
    /// For images without an override.
    pub limits: Limits,
    /// The recipe of new pods, for images without an override. The owner replaces a pod that [is
    /// outdated by it](PodRecipe::is_outdated_by).
    pub recipe: PodRecipe,
    /// Finds an image's override. This is a function and not a table, because the configuration
    /// names images by patterns that only the driver understands. It must return the same value
    /// for an image until the next `Configure`, or the next `RecipeChanged` of the image.
    pub overrides: Lookup<ImageKey, Option<ImageSettings>>,
    /// Pods of all images and runners together (`--max-pods`). `None`: any number.
    pub capacity: Option<u32>,
    /// The images that [`Limits::min_pods`] applies to, each with the key that decides its owner.
    /// This is a table and not a function: the owner must know these images before their first
    /// call, to start their pods.
    pub kept_images: Arc<BTreeMap<ImageKey, ShardKey>>,
    /// How often the owner looks for pods to collect or replace (`--scan-interval`).
    pub scan_interval: Duration,
    /// How long a pod may take to become ready, and how long a call may wait while there is no
    /// ready pod (`--pod-ready-timeout`).
    pub ready_timeout: Duration,
    /// How long a pod may be pending, for example while it pulls its image
    /// (`--pod-pending-timeout`). A value below `ready_timeout` counts as `ready_timeout`.
    pub pending_timeout: Duration,
    /// The largest difference between two runners' clocks, with a margin. A pod's time to live is
    /// at least four times this value. Runners on one machine may set 1 s.
    pub skew: Duration,
}

/// Limits of one image. `max_pods` limits the pods of all runners together; limits of calls hold
/// per runner. Zero counts as one, except in `min_pods`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Pods that are not terminating (`--max-parallel-pods-per-function`).
    pub max_pods: u32,
    /// Pods that the owner starts and keeps without a call, for images in [`Config::kept_images`].
    /// More than `max_pods` counts as `max_pods`.
    pub min_pods: u32,
    /// A runner starts one more pod when the least loaded pod has this many calls
    /// (`--max-waitlist-length`).
    pub waitlist: u32,
    /// Calls in flight per pod (`--max-concurrent-per-pod`).
    pub per_pod: u32,
    /// Calls waiting for a pod (`--max-queue-per-function`).
    pub queue: u32,
    /// How long an unused pod stays (`--pod-ttl`).
    pub ttl: Duration,
}

/// The settings of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSettings {
    /// See [`Config::limits`].
    pub limits: Limits,
    /// See [`Config::recipe`].
    pub recipe: PodRecipe,
}

// === impl Config ===

impl Config {
    /// Raises intervals that are too short.
    pub(crate) fn sane(mut self) -> Self {
        self.scan_interval = self.scan_interval.max(SHORTEST_INTERVAL);
        self.ready_timeout = self.ready_timeout.max(SHORTEST_INTERVAL);
        self
    }

    pub(crate) fn settings(&self, image: &ImageKey) -> ImageSettings {
        let all = || ImageSettings { limits: self.limits, recipe: self.recipe.clone() };
        let ImageSettings { mut limits, recipe } = self.overrides.find(image).unwrap_or_else(all);
        for limit in [&mut limits.max_pods, &mut limits.waitlist, &mut limits.per_pod, &mut limits.queue] {
            *limit = (*limit).max(1);
        }
        limits.min_pods = limits.min_pods.min(limits.max_pods);
        ImageSettings { limits, recipe }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_pods: 1,
                min_pods: 0,
                waitlist: 2,
                per_pod: 16,
                queue: 1000,
                ttl: Duration::from_mins(30),
            },
            recipe: PodRecipe::default(),
            overrides: Lookup::by(|_| None),
            capacity: None,
            kept_images: Arc::default(),
            scan_interval: Duration::from_mins(1),
            ready_timeout: Duration::from_mins(1),
            pending_timeout: Duration::from_mins(10),
            skew: Duration::from_secs(30),
        }
    }
}
