//! Which functions are this runner's to collect and replace: those whose owner it is on the ring.
//!
//! Discovery, [`LiveMembership`] and ring are the router's own, so that a function's owner is the runner that its calls
//! go to first. Views may differ for a while: the pool's deletes carry what was judged, so two owners do no harm, and
//! none means that collection waits. A runner that does not find itself among its peers owns nothing and serves on.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_discovery::{LiveMembership, Snapshot};
use porch_fn_lifecycle::drain;
use porch_fn_pool::{OwnedShards, ShardKey};
use porch_fn_ring::{Identity, Ring};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long it is normal not to be among the peers: a runner that starts is listed once it is
/// ready.
const UNLISTED_WITHIN: Duration = Duration::from_mins(1);

/// What is known of the peers, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    /// Runners on the ring.
    pub(crate) members: usize,
    /// Whether this runner is one of them. If not it owns nothing.
    pub(crate) listed: bool,
}

/// Finds out what this runner owns.
#[derive(Debug)]
pub(crate) struct Ownership {
    own: Identity,
    peers: watch::Sender<Peers>,
    ring: watch::Sender<Arc<[Identity]>>,
    owned: watch::Sender<OwnedShards>,
    /// Who is on the ring; `None` before the first answer.
    names: Option<BTreeSet<Identity>>,
    /// When to warn that this runner is not among its peers.
    warn_at: Option<Instant>,
    /// A runner that drains leaves its peers by itself.
    draining: bool,
}

// === impl Ownership ===

impl Ownership {
    /// For the runner at `own`, as routers spell it: `HostPort`'s text.
    pub(crate) fn new(own: String) -> Self {
        Self {
            own: own.into(),
            peers: watch::Sender::default(),
            ring: watch::Sender::new(Arc::default()),
            owned: watch::Sender::new(OwnedShards::None),
            names: None,
            warn_at: None,
            draining: false,
        }
    }

    /// What is known of the peers, now and later.
    pub(crate) fn peers(&self) -> watch::Receiver<Peers> {
        self.peers.subscribe()
    }

    /// Who is on the ring, now and later: nobody before the first answer.
    pub(crate) fn ring(&self) -> watch::Receiver<Arc<[Identity]>> {
        self.ring.subscribe()
    }

    /// What this runner owns, now and later: nothing before the first answer.
    pub(crate) fn owned(&self) -> watch::Receiver<OwnedShards> {
        self.owned.subscribe()
    }

    /// Follows discovery until nobody asks for what is owned, nor who the peers are. It goes on
    /// while the runner drains, which does not wait for it.
    pub(crate) async fn run(mut self, snapshots: watch::Receiver<Snapshot>, mut drain: drain::Watch) {
        let (owned, peers) = (self.owned.clone(), self.peers.clone());
        let unasked = async { tokio::join!(owned.closed(), peers.closed()) };
        let mut unasked = std::pin::pin!(unasked);
        // It drops the watch when it ends.
        let mut draining = std::pin::pin!(async move { drain.draining().await });
        let mut membership = LiveMembership::new(snapshots);
        loop {
            tokio::select! {
                // Peers are not asked for their health. While none is listed nobody collects, which can wait.
                () = membership.changed(|_| false) => self.tell(&membership),
                () = sleep_until(self.warn_at.unwrap_or_else(Instant::now)), if self.warn_at.is_some() => self.warn(),
                () = &mut draining, if !self.draining => {
                    self.draining = true;
                    self.warn_at = None;
                }
                _ = &mut unasked => return,
            }
        }
    }

    fn warn(&mut self) {
        self.warn_at = None;
        tracing::warn!(
            own = %self.own,
            members = self.peers.borrow().members,
            "this runner has not been among --peers for a minute and owns no function: it serves, but collects and \
             replaces no pods; see --shard-address"
        );
    }

    /// Tells it if the members changed.
    fn tell(&mut self, membership: &LiveMembership) {
        let names: BTreeSet<_> = membership.usable().map(Identity::from).collect();
        if self.names.as_ref() == Some(&names) {
            return;
        }
        let ring = match Ring::new(names.iter().cloned()) {
            Ok(ring) => ring,
            Err(error) => {
                tracing::error!(%error, "keeping the last ring");
                return;
            }
        };
        let before = *self.peers.borrow();
        let peers = Peers { members: names.len(), listed: names.contains(&self.own) };
        if peers.listed {
            tracing::info!(members = peers.members, "peers changed");
            self.warn_at = None;
        } else if before.listed || self.names.is_none() {
            tracing::info!(own = %self.own, members = peers.members, "this runner is not among --peers at the moment");
            self.warn_at = (!self.draining).then(|| Instant::now() + UNLISTED_WITHIN);
        }
        if peers.listed {
            let own = self.own.clone();
            let owns = move |key: &ShardKey| ring.owner(key.as_str()) == Some(&own);
            self.owned.send_replace(OwnedShards::Of(Arc::new(owns)));
        } else if before.listed {
            self.owned.send_replace(OwnedShards::None);
        }
        self.ring.send_replace(names.iter().cloned().collect());
        self.names = Some(names);
        self.peers.send_replace(peers);
    }
}
