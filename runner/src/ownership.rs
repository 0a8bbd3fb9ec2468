//! Finds out which functions this runner owns on the ring. Only the owner replaces outdated pods of
//! a function and collects (deletes) expired ones.
//!
//! Runner and router share discovery, [`LiveMembership`] and ring, so the router sends a function's
//! calls to its owner first. Runners may disagree for a while about the owner. Two owners do no
//! harm: the pool deletes a pod only if the pod has not changed since the pool's decision. If a
//! function has no owner, nobody collects its pods meanwhile. A runner that is not among its peers
//! owns nothing and continues to serve.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_discovery::{LiveMembership, Snapshot};
use porch_fn_lifecycle::drain;
use porch_fn_pool::{Lookup, OwnedShards, ShardKey};
use porch_fn_ring::{Ring, fingerprint};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::metrics::Metrics;

/// How long this runner may be missing among the peers without a warning. A new runner is normally
/// missing until it is ready.
const UNLISTED_WITHIN: Duration = Duration::from_mins(1);

/// Tracks which images this runner owns.
#[derive(Debug)]
pub(crate) struct Ownership {
    own: Arc<str>,
    /// The runners on the ring, sorted. It is empty before discovery's first answer.
    pub(crate) ring: watch::Sender<Arc<[Arc<str>]>>,
    /// The images that this runner owns: none before discovery's first answer.
    pub(crate) owned: watch::Sender<OwnedShards>,
    metrics: Arc<Metrics>,
    /// Whether this runner is on the ring; `None` before discovery's first answer.
    is_listed: Option<bool>,
    /// When to warn that this runner is not among its peers.
    warn_at: Option<Instant>,
    /// Whether the runner drains. A draining runner leaves the list of peers without a warning.
    draining: bool,
}

// === impl Ownership ===

impl Ownership {
    /// `own` is this runner's address in the form that routers use: `HostPort`'s text.
    pub(crate) fn new(own: String, metrics: Arc<Metrics>) -> Self {
        metrics.ring(0, false, fingerprint(&[]));
        Self {
            own: own.into(),
            ring: watch::Sender::new(Arc::default()),
            owned: watch::Sender::new(OwnedShards::None),
            metrics,
            is_listed: None,
            warn_at: None,
            draining: false,
        }
    }

    /// Follows discovery forever, also while the runner drains. Draining does not wait for this
    /// task.
    pub(crate) async fn run(mut self, snapshots: watch::Receiver<Snapshot>, mut drain: drain::Watch) {
        // Drops the drain watch when draining begins, so the drain does not wait for this task.
        let mut draining = std::pin::pin!(async move { drain.draining().await });
        let mut membership = LiveMembership::new(snapshots);
        loop {
            tokio::select! {
                // A runner does not probe its peers. So a peer leaves the ring as soon as discovery
                // no longer lists it. While discovery lists no peer, no runner collects pods.
                () = membership.changed(|_| false) => self.update(&membership),
                () = sleep_until(self.warn_at.unwrap_or_else(Instant::now)), if self.warn_at.is_some() => {
                    self.warn_at = None;
                    tracing::warn!(
                        runner = %self.own,
                        ring_members = self.ring.borrow().len(),
                        "this runner has not been among --peers for a minute, so it owns no function: it serves calls, but \
                         collects and replaces no pods; see --shard-address"
                    );
                }
                () = &mut draining, if !self.draining => {
                    self.draining = true;
                    self.warn_at = None;
                }
            }
        }
    }

    fn update(&mut self, membership: &LiveMembership) {
        let names: BTreeSet<_> = membership.usable().map(Arc::<str>::from).collect();
        if self.is_listed.is_some() && names.iter().eq(self.ring.borrow().iter()) {
            return;
        }
        let (members, listed) = (names.len(), names.contains(&*self.own));
        let was_listed = self.is_listed.replace(listed);
        if listed {
            tracing::info!(ring_members = members, "peers changed");
            self.warn_at = None;
            let (own, ring) = (self.own.clone(), Ring::new(names.iter().cloned()));
            let owns = move |key: &ShardKey| ring.owner(key.as_str()) == Some(&*own);
            self.owned.send_replace(OwnedShards::Of(Lookup::by(owns)));
        } else if was_listed != Some(false) {
            tracing::info!(runner = %self.own, ring_members = members, "this runner is not among --peers at the moment");
            self.warn_at = (!self.draining).then(|| Instant::now() + UNLISTED_WITHIN);
            self.owned.send_replace(OwnedShards::None);
        }
        let ring: Arc<[_]> = names.into_iter().collect();
        self.metrics.ring(members, listed, fingerprint(&ring));
        self.ring.send_replace(ring);
    }
}
