//! Keeps the snapshot that calls read in step with discovery: who is on the ring, and one prober
//! for each.
//!
//! Discovery's [`Membership`] decides when an address joins, so that a rollout does not rebuild the
//! ring for every pod. A runner leaves at once when discovery no longer lists it, unless its health
//! stream says SERVING: then it stays for a while, because discovery may be wrong. Whether a member
//! may be picked never changes the ring: its health says so, and whether it has just come back, be
//! that to discovery or to its health. The view counts both together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use porch_fn_ring::{Identity, Ring};
use porch_fn_service::conn::{self, AddressError};
use porch_fn_service::discovery::{Membership, Snapshot, State};
use porch_fn_service::health::Health;
use porch_fn_service::tasks::{pass_on_panic, test_panic};
use porch_fn_service::tls::Connector;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::metrics::Metrics;
use crate::prober::probe;
use crate::shard::Shard;
use crate::view::View;
use crate::wellness::Standing;

/// The members and their probers.
#[derive(Debug)]
pub(crate) struct Members {
    view: Arc<ArcSwap<View>>,
    changed: Arc<watch::Sender<()>>,
    health: Health,
    metrics: Arc<Metrics>,
    /// How their connections are secured, if they are.
    connector: Option<Connector>,
    connections: conn::Options,
    origin: Instant,
    membership: Membership,
    shards: BTreeMap<Identity, Member>,
    probers: JoinSet<()>,
}

#[derive(Debug)]
struct Member {
    shard: Arc<Shard>,
    prober: AbortHandle,
}

impl Members {
    /// Nobody yet. `changed` is sent to whenever a standing or the set changes.
    pub(crate) fn new(
        view: Arc<ArcSwap<View>>,
        changed: Arc<watch::Sender<()>>,
        health: Health,
        metrics: Arc<Metrics>,
        connector: Option<Connector>,
        connections: conn::Options,
    ) -> Self {
        Self {
            view,
            changed,
            health,
            metrics,
            connector,
            connections,
            origin: Instant::now(),
            membership: Membership::new(),
            shards: BTreeMap::new(),
            probers: JoinSet::new(),
        }
    }

    /// Follows `snapshots` until their sender is gone and they never change, or until it is dropped.
    pub(crate) async fn run(mut self, mut snapshots: watch::Receiver<Snapshot>) {
        let mut changed = self.changed.subscribe();
        let mut discovering = true;
        self.discovered(&snapshots.borrow_and_update().clone());
        loop {
            let timer = self.membership.next_timer().map(|at| self.origin + at);
            tokio::select! {
                more = snapshots.changed(), if discovering => match more {
                    Ok(()) => self.discovered(&snapshots.borrow_and_update().clone()),
                    Err(_) => discovering = false,
                },
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                    self.membership.tick(self.origin.elapsed());
                    self.publish();
                }
                // Never an error: this task holds a sender.
                _ = changed.changed() => {
                    let shards = &self.shards;
                    let left = self.membership.retain_unlisted(|name| answers(shards, name), self.origin.elapsed());
                    if !left.is_empty() {
                        self.publish();
                    }
                    self.show();
                }
                Some(ended) = self.probers.join_next() => pass_on_panic(ended),
            }
        }
    }

    fn discovered(&mut self, snapshot: &Snapshot) {
        if snapshot.generation == 0 {
            return;
        }
        tracing::trace!(endpoints = ?snapshot.endpoints, "discovery answered");
        let (shards, listed) = (&self.shards, snapshot.endpoints.iter().map(String::as_str));
        self.membership.update(listed, |name| answers(shards, name), self.origin.elapsed());
        self.publish();
        for (identity, member) in &self.shards {
            let listed = !self.membership.is_unlisted(identity.as_str());
            if member.shard.set_listed(listed) != listed {
                tracing::info!(shard = %identity, listed, "discovery's list of this runner changed");
            }
        }
        // Readiness waits for the first answer, even an empty one.
        self.health.set("", true);
        self.metrics.ready();
    }

    /// Publishes a new snapshot if the members changed.
    fn publish(&mut self) {
        let names: BTreeSet<_> = self.membership.joined_or_held_down().map(Identity::from).collect();
        if self.shards.keys().eq(&names) {
            return;
        }
        let gone: Vec<_> = self.shards.keys().filter(|known| !names.contains(*known)).cloned().collect();
        for identity in gone {
            if let Some(member) = self.shards.remove(&identity) {
                member.prober.abort();
                self.health.remove(&health_name(&identity));
                tracing::info!(shard = %identity, "runner left");
            }
        }
        for identity in names {
            if !self.shards.contains_key(&identity) {
                match self.start(identity.clone()) {
                    Ok(member) => {
                        tracing::info!(shard = %identity, "runner joined");
                        self.shards.insert(identity, member);
                    }
                    Err(error) => tracing::error!(%error, "ignoring a runner; see --runners"),
                }
            }
        }
        match Ring::new(self.shards.keys().cloned()) {
            Ok(ring) => {
                let shards = self.shards.values().map(|member| Arc::clone(&member.shard)).collect();
                self.view.store(Arc::new(View::new(ring, shards)));
                self.metrics.ring_changed();
            }
            Err(error) => tracing::error!(%error, "keeping the last ring"),
        }
        self.changed.send_replace(());
    }

    fn start(&mut self, identity: Identity) -> Result<Member, AddressError> {
        let span = tracing::info_span!("probe", shard = %identity);
        let returned = matches!(self.membership.state(identity.as_str()), State::HeldDown { .. });
        let shard = Arc::new(Shard::new(
            identity,
            returned,
            self.connections,
            self.connector.clone(),
            self.origin,
            Arc::clone(&self.changed),
        )?);
        let (probed, view) = (Arc::clone(&shard), Arc::clone(&self.view));
        let prober = self
            .probers
            .spawn(test_panic::or("probe", async move { probe(&probed, &view).await }).instrument(span));
        Ok(Member { shard, prober })
    }

    /// Mirrors standings to gRPC health and metrics.
    fn show(&self) {
        for (identity, member) in &self.shards {
            let out = matches!(member.shard.standing(), Standing::Out(_));
            self.health.set(&health_name(identity), !out);
        }
        self.metrics.show(&self.view.load());
    }
}

/// Whether a member's health stream says SERVING.
fn answers(shards: &BTreeMap<Identity, Member>, name: &str) -> bool {
    shards
        .get(&Identity::from(name))
        .is_some_and(|member| !matches!(member.shard.standing(), Standing::Out(_)))
}

/// A shard's name in the router's gRPC health service.
fn health_name(identity: &Identity) -> String {
    format!("shard/{identity}")
}
