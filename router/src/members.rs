//! Applies discovery's changes to the snapshot that calls read, and runs one prober for each
//! runner.
//!
//! Discovery's [`LiveMembership`] decides when an address joins, so that a rollout does not rebuild
//! the ring for every pod. Another thread builds rings. Departures are collected for the next ring,
//! and no call picks a runner that left. When discovery no longer lists a runner, the runner leaves
//! at once, unless its health stream reports SERVING. Then it stays for a while, because discovery
//! may be wrong. Health never changes the ring; it only decides whether a member may be picked. A
//! runner cools down (see `health.rs`) when discovery lists it again, or when it is available again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use porch_fn_discovery::{COALESCE, LiveMembership};
use porch_fn_grpc_client::conn::AddressError;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::{pass_on_panic, test_panic};
use porch_fn_ring::Ring;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::metrics::Metrics;
use crate::prober::probe;
use crate::runner::{Runner, Shared};
use crate::view::View;

/// The members and their probers.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) view: Arc<ArcSwap<View>>,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
    /// What each runner gets.
    pub(crate) shared: Shared,
    pub(crate) membership: LiveMembership,
    /// Wakes calls that wait for a runner. A runner that becomes unavailable wakes none.
    pub(crate) available: watch::Sender<()>,
    pub(crate) runners: BTreeMap<Arc<str>, Member>,
    pub(crate) probers: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Member {
    runner: Arc<Runner>,
    prober: AbortHandle,
    /// What the router's health service says about the runner.
    reported: Option<bool>,
}

impl Members {
    /// Follows discovery until the future is dropped.
    pub(crate) async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        // When the last ring was built, and when to build the next one if the members changed.
        let (mut built, mut due) = (None, None);
        loop {
            let runners = &self.runners;
            tokio::select! {
                () = self.membership.changed(|name| is_serving(runners, name)) => {
                    due = self.follow(built, due);
                    self.record_listed();
                    self.record_states();
                }
                // This is never an error, because this task holds a sender.
                _ = changed.changed() => {
                    self.membership.retain_unlisted(|name| is_serving(runners, name));
                    due = self.follow(built, due);
                    self.record_states();
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    (built, due) = (Some(Instant::now()), None);
                    self.build().await;
                }
                Some(ended) = self.probers.join_next() => pass_on_panic(ended),
            }
        }
    }

    fn record_listed(&self) {
        for (address, member) in &self.runners {
            let listed = !self.membership.is_unlisted(address);
            if member.runner.set_listed(listed) != listed {
                tracing::info!(runner = %address, listed, "discovery has started or stopped listing this runner");
            }
        }
    }

    /// Starts the runners that joined, and stops those that left. Returns when to build the ring.
    fn follow(&mut self, built: Option<Instant>, mut due: Option<Instant>) -> Option<Instant> {
        let is_same = self.runners.keys().map(|address| &**address).eq(self.membership.members());
        if is_same && built.is_some() {
            return due;
        }
        // The first ring may be empty. Departures are collected; arrivals have been collected.
        let now = Instant::now();
        due = due.or(built.is_none().then_some(now));
        let names: BTreeSet<Arc<str>> = self.membership.members().map(Arc::from).collect();
        for (address, member) in self.runners.extract_if(.., |address, _| !names.contains(address)) {
            member.prober.abort();
            member.runner.leave();
            self.health.remove(&health_name(&address));
            tracing::info!(runner = %address, "runner left");
            due = due.or(built.map(|built| built + COALESCE));
        }
        for address in names {
            if self.runners.contains_key(&address) {
                continue;
            }
            match self.start(address.clone()) {
                Ok(member) => {
                    tracing::info!(runner = %address, "runner joined");
                    self.runners.insert(address, member);
                    due = Some(now);
                }
                Err(error) => tracing::error!(%error, "ignoring a runner: invalid address; see --runners"),
            }
        }
        due
    }

    /// Publishes the view of the current members. A ring of a thousand runners takes tens of
    /// milliseconds, so another thread builds it.
    async fn build(&mut self) {
        let runners: Vec<_> = self.runners.values().map(|member| Arc::clone(&member.runner)).collect();
        let totals = Arc::clone(&self.shared.totals);
        let published = Arc::clone(&self.view);
        let build = move || {
            let ring = Ring::new(runners.iter().map(|runner| Arc::clone(&runner.address)));
            published.store(Arc::new(View::new(ring, runners, totals)));
        };
        pass_on_panic(spawn_blocking(build).await);
        // The router is ready after discovery's first answer, even if the answer lists no runner.
        self.health.set("", true);
        self.metrics.ready.set(1);
        self.metrics.ring_changes.inc();
        self.record_states();
    }

    fn start(&mut self, address: Arc<str>) -> Result<Member, AddressError> {
        let span = tracing::info_span!("probe", runner = %address);
        let is_known = self.membership.is_cooling_down(&address);
        let runner = Arc::new(Runner::new(address, is_known, self.shared.clone())?);
        let (probed, view) = (Arc::clone(&runner), Arc::clone(&self.view));
        let probing = test_panic::or("probe", async move { probe(&probed, &view).await });
        let prober = self.probers.spawn(probing.instrument(span));
        Ok(Member { runner, prober, reported: None })
    }

    /// Copies the runners' health states to gRPC health and metrics, and wakes waiting calls.
    fn record_states(&mut self) {
        for (address, member) in &mut self.runners {
            let is_available = !member.runner.state().is_unavailable();
            if member.reported.replace(is_available) != Some(is_available) {
                self.health.set(&health_name(address), is_available);
            }
        }
        self.metrics.update(&self.view.load());
        self.available.send_if_modified(|()| self.view.load().usable().1 > 0);
    }
}

/// Whether the runner `name` is a member that reported SERVING in its last health check.
fn is_serving(runners: &BTreeMap<Arc<str>, Member>, name: &str) -> bool {
    runners.get(name).is_some_and(|member| !member.runner.state().is_unavailable())
}

/// A runner's name in the router's gRPC health service.
fn health_name(address: &str) -> String {
    format!("shard/{address}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_discovery::Snapshot;
    use porch_fn_grpc::{Hop, Inflight};
    use porch_fn_grpc_client::conn::Options;
    use prometheus_client::registry::Registry;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rollout_does_not_rebuild_the_ring_for_each_departure() {
        let second = Duration::from_secs(1);
        let connections =
            Options { connect_timeout: second, ping: None, user_timeout: second, keepalive: None };
        let (changed, totals) = Default::default();
        let shared = Shared { connections, connector: None, changed, totals, routers: 1 };
        let metrics = Metrics::new(&mut Registry::default(), &Inflight::new(1 << 30, Hop::Router), 0);
        let (metrics, view) =
            (Arc::new(metrics), Arc::new(ArcSwap::from_pointee(View::empty(&shared.totals))));
        let (discovered, snapshots) = watch::channel(Snapshot::default());
        let members = Members {
            view: Arc::clone(&view),
            health: Health::new(),
            metrics: Arc::clone(&metrics),
            shared,
            membership: LiveMembership::new(snapshots),
            available: watch::Sender::new(()),
            runners: BTreeMap::new(),
            probers: JoinSet::new(),
        };
        let _running = tokio::spawn(members.run());
        let list = |from: usize| {
            let endpoints = (from..100).map(|n| format!("127.1.0.{n}:1")).collect();
            discovered.send_replace(Snapshot { endpoints, is_answered: true, ..Snapshot::default() });
        };
        list(0);
        sleep(second).await;
        assert_eq!((view.load().runners.len(), metrics.ring_changes.get()), (100, 1));
        sleep(2 * second).await;
        for gone in 1..=50 {
            list(gone);
            sleep(Duration::from_millis(10)).await;
            assert_eq!(view.load().counts().iter().sum::<usize>(), 100 - gone);
        }
        sleep(3 * second).await;
        assert_eq!((view.load().runners.len(), metrics.ring_changes.get()), (50, 3), "the first at once");
    }
}
