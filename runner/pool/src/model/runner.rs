//! One runner of the model: a pool, its clock, its watch, and its view of the owners.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, ImageSettings};
use crate::event::OwnedShards;
use crate::function::Pool;
use crate::types::{ImageContent, ImageKey, Lookup, Pod, PodRecipe, ShardKey, Time, Uid};

#[derive(Debug, Default)]
pub(crate) struct Runner {
    pub(crate) pool: Pool,
    /// Number of restarts. An answer to a request from before a restart is dropped.
    pub(crate) life: u64,
    /// Milliseconds by which its clock is ahead of the true time: [`OFFSETS`] at most.
    offset: u64,
    pub(crate) config: Config,
    /// The true time when its process started. No recipe ([`PodRecipe`]) of this runner has an
    /// earlier `config_time`.
    started: u64,
    /// The content of the tags, as far as this runner knows.
    pub(crate) known: BTreeMap<ImageKey, ImageContent>,
    /// Keys that this runner considers its own.
    pub(crate) view: BTreeSet<ShardKey>,
    /// Number of watches so far. A change from an earlier watch is dropped.
    pub(crate) watch: u64,
    pub(crate) connected: bool,
    pub(crate) synced: bool,
    /// The arrival time of the newest change on its way. Changes arrive in order, so a later change
    /// does not arrive earlier.
    pub(crate) deliver_at: u64,
    pub(crate) lag: u64,
    /// The number of changes in the server's log that its watch has sent.
    pub(crate) cursor: usize,
    pub(crate) probing: BTreeSet<Uid>,
    pub(crate) created: BTreeSet<Uid>,
    /// The newest state of each pod that the driver has reported.
    reported: BTreeMap<Uid, Pod>,
    /// Pods that the driver has reported as gone.
    ended: BTreeSet<Uid>,
}

/// Clocks differ by 20 s at most.
pub(crate) const OFFSETS: u64 = 20_000;

// === impl Runner ===

impl Runner {
    pub(crate) fn new(config: Config, offset: u64, started: u64) -> Self {
        let pool = Pool::new(configured(&config, started, &BTreeMap::new()));
        Self { pool, offset, config, started, lag: 50, ..Self::default() }
    }

    /// The time on the runner's clock at the true time `now`.
    pub(crate) fn local(&self, now: u64) -> Time {
        Time::from_millis(now + self.offset)
    }

    /// The true time of the pool's next timer.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.pool.next_timer().map(|time| time.as_millis().saturating_sub(self.offset))
    }

    pub(crate) fn owned(&self) -> OwnedShards {
        let view = self.view.clone();
        OwnedShards::Of(Lookup::by(move |key: &ShardKey| view.contains(key)))
    }

    /// Whether the runner considers itself the owner of an image.
    pub(crate) fn view_owns(&self, image: &ImageKey) -> bool {
        self.view.contains(&ShardKey::from(image.as_str()))
    }

    pub(crate) fn configured(&self) -> Config {
        configured(&self.config, self.started, &self.known)
    }

    /// Whether the driver reports this state of a pod: not if a newer state or the end of the pod
    /// was already reported. Records the state that is reported.
    pub(crate) fn reports(&mut self, pod: &Pod) -> bool {
        let version = |pod: &Pod| pod.resource_version.as_str().parse::<u64>().unwrap_or_default();
        let known = self.reported.get(&pod.uid);
        if self.ended.contains(&pod.uid) || known.is_some_and(|known| version(known) > version(pod)) {
            return false;
        }
        self.reported.insert(pod.uid.clone(), pod.clone());
        true
    }

    pub(crate) fn report_gone(&mut self, uid: &Uid) {
        self.reported.remove(uid);
        self.ended.insert(uid.clone());
    }

    /// A list as the driver reports it. If a newer state of a pod was already reported, the list
    /// contains that state. Pods that were reported as gone are left out.
    pub(crate) fn report_list(&mut self, pods: &[Pod]) -> Vec<Pod> {
        self.reported.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        for pod in pods {
            self.reports(pod);
        }
        self.reported.values().cloned().collect()
    }

    /// The runner was killed and restarts with an empty pool. Its view of the owners stays.
    pub(crate) fn restart(&mut self, config: Config, now: u64) {
        let new = Self::new(config, self.offset, now);
        let (life, watch, view) = (self.life + 1, self.watch + 1, std::mem::take(&mut self.view));
        let (deliver_at, lag, cursor) = (self.deliver_at, self.lag, self.cursor);
        *self = Self { life, view, watch, deliver_at, lag, cursor, ..new };
    }
}

fn configured(config: &Config, started: u64, known: &BTreeMap<ImageKey, ImageContent>) -> Config {
    let (limits, recipe, known) = (config.limits, config.recipe.clone(), known.clone());
    let config_time = recipe.config_time.max(Some(Time::from_millis(started)));
    let overrides = Lookup::by(move |image: &ImageKey| {
        let content = known.get(image).cloned();
        Some(ImageSettings { limits, recipe: PodRecipe { config_time, content, ..recipe.clone() } })
    });
    Config { overrides, ..config.clone() }
}
