//! One runner of the model: a pool, its clock, its watch, and its view of who owns what.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::breakage::Breakage;
use crate::config::{Config, Override, Overrides};
use crate::event::Ownership;
use crate::pool::Pool;
use crate::types::{Content, ImageKey, Origin, ShardKey, Time, Uid};

#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) pool: Pool,
    /// Counts restarts: answers to an earlier life are dropped.
    pub(crate) life: u64,
    /// Ahead of the true time, by an amount that `true time + OFFSET_BASE` keeps positive.
    offset: u64,
    pub(crate) config: Config,
    /// When its process started, by the true time: so new is its configuration at least.
    started: u64,
    /// What it was told that the tags stand for.
    pub(crate) known: BTreeMap<ImageKey, Content>,
    /// Keys that it believes to own.
    pub(crate) view: BTreeSet<ShardKey>,
    /// Counts watches: changes from an earlier one are dropped.
    pub(crate) watch: u64,
    pub(crate) connected: bool,
    pub(crate) synced: bool,
    /// Changes arrive in order, so none before this.
    pub(crate) deliver_at: u64,
    pub(crate) lag: u64,
    /// How much of the log its watch has sent.
    pub(crate) cursor: usize,
    pub(crate) probing: BTreeSet<Uid>,
    pub(crate) created: BTreeSet<Uid>,
}

/// Clocks differ by 20 s at most.
pub(crate) const OFFSETS: u64 = 20_000;

// === impl Runner ===

impl Runner {
    pub(crate) fn new(config: Config, offset: u64, started: u64, broken: Option<Breakage>) -> Self {
        let known = BTreeMap::new();
        Self {
            pool: new_pool(configured(&config, started, &known), broken),
            life: 0,
            offset,
            config,
            started,
            known,
            view: BTreeSet::new(),
            watch: 0,
            connected: false,
            synced: false,
            deliver_at: 0,
            lag: 50,
            cursor: 0,
            probing: BTreeSet::new(),
            created: BTreeSet::new(),
        }
    }

    /// What its clock shows at a true time.
    pub(crate) fn local(&self, now: u64) -> Time {
        Time::from_millis(now + self.offset)
    }

    /// The true time of its next timer.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.pool.next_timer().map(|time| time.as_millis().saturating_sub(self.offset))
    }

    pub(crate) fn ownership(&self) -> Ownership {
        let view = self.view.clone();
        Ownership::Of(Arc::new(move |key: &ShardKey| view.contains(key)))
    }

    /// Whether it believes to own an image.
    pub(crate) fn view_owns(&self, image: &ImageKey) -> bool {
        self.view.contains(&ShardKey::from(image))
    }

    /// Its configuration as its pool has it.
    pub(crate) fn configured(&self) -> Config {
        configured(&self.config, self.started, &self.known)
    }

    /// It was killed and comes back with an empty memory.
    pub(crate) fn restart(&mut self, config: Config, now: u64, broken: Option<Breakage>) {
        (self.config, self.started) = (config, now);
        self.known.clear();
        self.pool = new_pool(self.configured(), broken);
        self.life += 1;
        self.watch += 1;
        self.connected = false;
        self.synced = false;
        self.probing.clear();
        self.created.clear();
    }
}

fn configured(config: &Config, started: u64, known: &BTreeMap<ImageKey, Content>) -> Config {
    let (template, known) = (config.template.clone(), known.clone());
    let config_time = template.config_time.max(Some(Time::from_millis(started)));
    let overrides = Overrides::by(move |image| {
        let content = known.get(image).cloned();
        let template = Some(Origin { config_time, content, ..template.clone() });
        Override { template, ..Override::default() }
    });
    Config { overrides, ..config.clone() }
}

fn new_pool(config: Config, broken: Option<Breakage>) -> Pool {
    let mut pool = Pool::new(config);
    if let Some(rule) = broken {
        pool.break_rule(rule);
    }
    pool
}
