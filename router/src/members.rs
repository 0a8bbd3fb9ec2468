//! Applies discovery's changes to the snapshot that calls read, and runs one prober for each
//! runner.
//!
//! Discovery's [`LiveMembership`] decides when an address joins, so that a rollout does not rebuild
//! the ring for every pod. When discovery no longer lists a runner, the runner leaves at once,
//! unless its health stream reports SERVING. Then it stays for a while, because discovery may be
//! wrong. Health never changes the ring; it only decides whether a member may be picked. A runner
//! cools down (see `health.rs`) when discovery lists it again, or when it is available again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use porch_fn_discovery::LiveMembership;
use porch_fn_grpc_client::conn::AddressError;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::{pass_on_panic, test_panic};
use porch_fn_ring::Ring;
use tokio::task::{AbortHandle, JoinSet};
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
    pub(crate) runners: BTreeMap<Arc<str>, Member>,
    pub(crate) probers: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Member {
    runner: Arc<Runner>,
    prober: AbortHandle,
}

impl Members {
    /// Follows discovery until the future is dropped.
    pub(crate) async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let runners = &self.runners;
            tokio::select! {
                () = self.membership.changed(|name| is_serving(runners, name)) => {
                    // The router is ready after discovery's first answer, even if the
                    // answer lists no runner.
                    self.health.set("", true);
                    self.metrics.ready.set(1);
                    self.publish();
                    self.record_listed();
                }
                // This is never an error, because this task holds a sender.
                _ = changed.changed() => {
                    self.membership.retain_unlisted(|name| is_serving(runners, name));
                    self.publish();
                    self.record_states();
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

    /// Publishes a new snapshot if the members changed.
    fn publish(&mut self) {
        let names: BTreeSet<_> = self.membership.members().map(Arc::from).collect();
        if self.runners.keys().eq(&names) {
            return;
        }
        for (address, member) in self.runners.extract_if(.., |address, _| !names.contains(address)) {
            member.prober.abort();
            member.runner.leave();
            self.health.remove(&health_name(&address));
            tracing::info!(runner = %address, "runner left");
        }
        for address in names {
            if self.runners.contains_key(&address) {
                continue;
            }
            match self.start(address.clone()) {
                Ok(member) => {
                    tracing::info!(runner = %address, "runner joined");
                    self.runners.insert(address, member);
                }
                Err(error) => tracing::error!(%error, "ignoring a runner: invalid address; see --runners"),
            }
        }
        let ring = Ring::new(self.runners.keys().cloned());
        let runners = self.runners.values().map(|member| Arc::clone(&member.runner)).collect();
        self.view.store(Arc::new(View::new(ring, runners, Arc::clone(&self.shared.totals))));
        self.metrics.ring_changes.inc();
        self.shared.changed.send_replace(());
    }

    fn start(&mut self, address: Arc<str>) -> Result<Member, AddressError> {
        let span = tracing::info_span!("probe", runner = %address);
        let is_known = self.membership.is_cooling_down(&address);
        let runner = Arc::new(Runner::new(address, is_known, self.shared.clone())?);
        let (probed, view) = (Arc::clone(&runner), Arc::clone(&self.view));
        let probing = test_panic::or("probe", async move { probe(&probed, &view).await });
        Ok(Member { runner, prober: self.probers.spawn(probing.instrument(span)) })
    }

    /// Copies the runners' health states to gRPC health and metrics.
    fn record_states(&self) {
        for (address, member) in &self.runners {
            self.health.set(&health_name(address), !member.runner.state().is_unavailable());
        }
        self.metrics.update(&self.view.load());
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
