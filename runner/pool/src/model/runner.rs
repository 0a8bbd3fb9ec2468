//! One runner of the model: a pool, its clock, its watch, and its view of who owns what.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::Ownership;
use crate::pool::Pool;
use crate::types::{ImageKey, ShardKey, Time, Uid};

#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) pool: Pool,
    /// Counts restarts: answers to an earlier life are dropped.
    pub(crate) life: u64,
    /// Ahead of the true time, by an amount that `true time + OFFSET_BASE` keeps positive.
    offset: u64,
    pub(crate) config: Config,
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
    pub(crate) fn new(config: Config, offset: u64, broken: Option<Breakage>) -> Self {
        Self {
            pool: new_pool(config.clone(), broken),
            life: 0,
            offset,
            config,
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

    /// It was killed and comes back with an empty memory.
    pub(crate) fn restart(&mut self, broken: Option<Breakage>) {
        self.pool = new_pool(self.config.clone(), broken);
        self.life += 1;
        self.watch += 1;
        self.connected = false;
        self.synced = false;
        self.probing.clear();
        self.created.clear();
    }
}

fn new_pool(config: Config, broken: Option<Breakage>) -> Pool {
    let mut pool = Pool::new(config);
    if let Some(rule) = broken {
        pool.break_rule(rule);
    }
    pool
}
