//! What an operator can turn: one set of defaults for all images, and what differs for one image.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::types::{ImageKey, Origin, ShardKey};

/// A timer shorter than this would keep the pool busy with itself.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The pool's configuration. `Default` is the documented defaults, with an empty version.
#[derive(Clone, Debug)]
pub struct Config {
    /// For images without an override.
    pub limits: Limits,
    /// What new pods are made from, for images without an override. A pod that [yields](Origin::yields_to) to it is
    /// replaced by its owner.
    pub template: Origin,
    /// What differs per image.
    pub overrides: Overrides,
    /// Pods of all images and runners together (`--max-pods`). `None`: any number.
    pub capacity: Option<u32>,
    /// The images that [`Limits::min_pods`] is meant for, each with the key that says who owns it. A table and not a
    /// function, since their pods are started although nobody asks for them.
    pub keep: Arc<BTreeMap<ImageKey, ShardKey>>,
    /// How often the owner looks for pods to collect or replace (`--scan-interval`).
    pub scan_interval: Duration,
    /// How long a pod may take to become ready, and a call may wait without any ready pod (`--pod-ready-timeout`).
    pub ready_timeout: Duration,
    /// How long a pod may be pending without a fault, such as one that pulls its image (`--pod-pending-timeout`). Less than
    /// `ready_timeout` counts as that.
    pub pending_timeout: Duration,
    /// The largest difference between two runners' clocks, with a margin. A pod's time to live is at least four
    /// times this. Runners on one machine may set 1 s.
    pub skew: Duration,
    /// How long a pod must have been owned without a break before it is replaced.
    pub replace_after: Duration,
    /// How long past its deletion timestamp a pod may hold its name.
    pub stuck_after: Duration,
}

/// Limits of one image, on this runner's own counts except `max_pods`, which holds for all runners together. A limit of
/// zero counts as one, except `min_pods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pods that are not terminating (`--max-parallel-pods-per-function`).
    pub max_pods: u32,
    /// Pods that the owner starts and keeps although nobody asks for them, for images in [`Config::keep`]. More than
    /// `max_pods` counts as `max_pods`.
    pub min_pods: u32,
    /// Load of the least loaded pod from which on one more pod is started (`--max-waitlist-length`).
    pub waitlist: u32,
    /// Calls in flight per pod (`--max-concurrent-per-pod`).
    pub per_pod: u32,
    /// Calls waiting for a pod (`--max-queue-per-function`).
    pub queue: u32,
    /// How long an unused pod stays (`--pod-ttl`).
    pub ttl: Duration,
}

/// What differs for one image. Zero and `None` mean: as for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// See [`Limits::max_pods`].
    pub max_pods: u32,
    /// See [`Limits::min_pods`].
    pub min_pods: u32,
    /// See [`Limits::waitlist`].
    pub waitlist: u32,
    /// See [`Limits::per_pod`].
    pub per_pod: u32,
    /// See [`Limits::queue`].
    pub queue: u32,
    /// See [`Limits::ttl`].
    pub ttl: Duration,
    /// See [`Config::template`].
    pub template: Option<Origin>,
}

/// Finds an image's override. A function and not a table, since the configuration names functions by patterns that
/// only the driver understands. Must give the same answer until the next `Configure`, or `Remade` of that image.
#[derive(Clone)]
pub struct Overrides(Arc<dyn Fn(&ImageKey) -> Override + Send + Sync>);

/// What holds for one image.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) template: Origin,
    /// Decides who keeps the image; `None` if it is not one to be kept.
    pub(crate) keep: Option<ShardKey>,
}

// === impl Config ===

impl Config {
    /// With intervals that leave time for anything else.
    pub(crate) fn sane(mut self) -> Self {
        self.scan_interval = self.scan_interval.max(SHORTEST_INTERVAL);
        self.ready_timeout = self.ready_timeout.max(SHORTEST_INTERVAL);
        self
    }

    pub(crate) fn settings(&self, image: &ImageKey) -> Settings {
        let own = self.overrides.find(image);
        let or = |own: u32, all: u32| if own == 0 { all.max(1) } else { own };
        let max_pods = or(own.max_pods, self.limits.max_pods);
        let min_pods = if own.min_pods == 0 { self.limits.min_pods } else { own.min_pods };
        Settings {
            limits: Limits {
                max_pods,
                min_pods: min_pods.min(max_pods),
                waitlist: or(own.waitlist, self.limits.waitlist),
                per_pod: or(own.per_pod, self.limits.per_pod),
                queue: or(own.queue, self.limits.queue),
                ttl: if own.ttl.is_zero() { self.limits.ttl } else { own.ttl },
            },
            template: own.template.unwrap_or_else(|| self.template.clone()),
            keep: self.keep.get(image).cloned(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            template: Origin::of("", None),
            overrides: Overrides::none(),
            capacity: None,
            keep: Arc::default(),
            scan_interval: Duration::from_mins(1),
            ready_timeout: Duration::from_mins(1),
            pending_timeout: Duration::from_mins(10),
            skew: Duration::from_secs(30),
            replace_after: Duration::from_mins(1),
            stuck_after: Duration::from_secs(10),
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { max_pods: 1, min_pods: 0, waitlist: 2, per_pod: 16, queue: 1000, ttl: Duration::from_mins(30) }
    }
}

// === impl Overrides ===

impl Overrides {
    /// Every image as all others.
    pub fn none() -> Self {
        Self::by(|_| Override::default())
    }

    /// Asks `find` for each image once.
    pub fn by(find: impl Fn(&ImageKey) -> Override + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// Exact images.
    pub fn table(table: HashMap<ImageKey, Override>) -> Self {
        Self::by(move |image| table.get(image).cloned().unwrap_or_default())
    }

    /// What differs for `image`.
    pub fn find(&self, image: &ImageKey) -> Override {
        (self.0)(image)
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overrides(..)")
    }
}
