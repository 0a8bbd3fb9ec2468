//! What a call sees of the cluster: one immutable snapshot of ring and runners.
//!
//! Calls read the snapshot without a lock; the membership task replaces it as a whole. A runner that is
//! in two snapshots is the same [`Shard`], so its connection, load and standing carry over.

use std::collections::BTreeMap;
use std::sync::Arc;

use porch_fn_ring::Ring;

use crate::shard::Shard;
use crate::wellness::Standing;

/// Ring and runners of one moment.
#[derive(Debug)]
pub(crate) struct View {
    ring: Ring,
    /// Indexed as the ring's nodes are.
    shards: Vec<Arc<Shard>>,
}

impl View {
    /// Pairs a ring with its runners, both sorted by identity.
    pub(crate) fn new(ring: Ring, shards: Vec<Arc<Shard>>) -> Self {
        debug_assert!(ring.nodes().iter().eq(shards.iter().map(|shard| shard.identity())));
        Self { ring, shards }
    }

    /// The ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The runners, in the order of the ring's nodes.
    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Which standing a runner must have to be picked now, and how many have it. Held-down runners are
    /// used when no other is left.
    pub(crate) fn usable(&self) -> (Standing, usize) {
        let count = |wanted| self.shards.iter().filter(|shard| shard.standing() == wanted).count();
        match count(Standing::Well) {
            0 => (Standing::HeldDown, count(Standing::HeldDown)),
            well => (Standing::Well, well),
        }
    }

    /// `0 of 3 runners ready: 2 unreachable, 1 draining`. Counts, and names none: the text may end up in
    /// a commit.
    pub(crate) fn summary(&self) -> String {
        let mut out: BTreeMap<_, usize> = BTreeMap::new();
        let mut ready = 0;
        for shard in &self.shards {
            match shard.standing() {
                Standing::Out(reason) => *out.entry(reason).or_default() += 1,
                Standing::Well | Standing::HeldDown => ready += 1,
            }
        }
        let reasons: Vec<_> =
            out.iter().map(|(reason, count)| format!("{count} {}", reason.as_str())).collect();
        let known = self.shards.len();
        match (known, reasons.is_empty()) {
            (0, _) => "0 runners known".to_owned(),
            (_, true) => format!("{ready} of {known} runners ready"),
            _ => format!("{ready} of {known} runners ready: {}", reasons.join(", ")),
        }
    }
}
