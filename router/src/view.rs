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
    /// used when no other is left, and those that are passed over when there are none of these either.
    pub(crate) fn usable(&self) -> (Standing, usize) {
        let tiers = [Standing::Well, Standing::HeldDown, Standing::PassedOver];
        // Each call asks this: usually the first tier is counted alone.
        let mut counts = tiers.into_iter().map(|standing| (standing, self.count(standing)));
        counts.find(|&(_, count)| count > 0).unwrap_or((Standing::Well, 0))
    }

    /// Whether one more runner may be passed over: half of those in use at most. When more seem to fail than that, it is
    /// the calls.
    pub(crate) fn may_pass_over(&self) -> bool {
        let [well, held_down, passed] =
            [Standing::Well, Standing::HeldDown, Standing::PassedOver].map(|standing| self.count(standing));
        (passed + 1) * 2 <= well + held_down + passed
    }

    fn count(&self, standing: Standing) -> usize {
        self.shards.iter().filter(|shard| shard.standing() == standing).count()
    }

    /// `0 of 3 runners ready: 2 unreachable, 1 draining`. Counts, and names none: the text may end up in
    /// a commit.
    pub(crate) fn summary(&self) -> String {
        let mut out: BTreeMap<_, usize> = BTreeMap::new();
        let mut ready = 0;
        for shard in &self.shards {
            match shard.standing() {
                Standing::Out(reason) => *out.entry(reason).or_default() += 1,
                Standing::Well | Standing::HeldDown | Standing::PassedOver => ready += 1,
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
