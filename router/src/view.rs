//! What a call sees of the cluster: one immutable snapshot of ring and runners.
//!
//! Calls read the snapshot without a lock; the membership task replaces it as a whole. A runner that is
//! in two snapshots is the same [`Shard`], so its connection, load and standing carry over.

use std::collections::BTreeMap;
use std::sync::Arc;

use porch_fn_ring::Ring;
use porch_fn_service::discovery::held_down_count;

use crate::shard::Shard;
use crate::wellness::Standing;

/// Ring and runners of one moment.
#[derive(Debug)]
pub(crate) struct View {
    ring: Ring,
    /// Indexed as the ring's nodes are.
    shards: Vec<Arc<Shard>>,
}

/// The runners that may be picked, by their standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Well,
    WellAndHeldDown,
    /// What is left when a runner of the first tier has refused a call.
    HeldDown,
    PassedOver,
}

impl Tier {
    /// Whether a runner of this standing may be picked.
    pub(crate) fn admits(self, standing: Standing) -> bool {
        match standing {
            Standing::Well => matches!(self, Self::Well | Self::WellAndHeldDown),
            Standing::HeldDown => matches!(self, Self::HeldDown | Self::WellAndHeldDown),
            Standing::PassedOver => self == Self::PassedOver,
            Standing::Out(_) => false,
        }
    }
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

    /// Which runners may be picked now, and how many they are.
    ///
    /// Held-down runners stand back for healthy ones, since one of them may flap. When
    /// [`held_down_count`] says so, both are used. Those that are passed over are used when there
    /// are no others.
    pub(crate) fn usable(&self) -> (Tier, usize) {
        let [well, held_down, passed] = self.counts();
        match (well, held_down) {
            (0, 0) => (Tier::PassedOver, passed),
            _ if held_down_count(well, held_down) => (Tier::WellAndHeldDown, well + held_down),
            _ => (Tier::Well, well),
        }
    }

    /// Whether one more runner may be passed over: half of those in use at most. When more seem to fail than that, it is
    /// the calls.
    pub(crate) fn may_pass_over(&self) -> bool {
        let [well, held_down, passed] = self.counts();
        (passed + 1) * 2 <= well + held_down + passed
    }

    /// Runners that are well, held down and passed over. Each call asks this.
    fn counts(&self) -> [usize; 3] {
        self.shards.iter().fold([0; 3], |[well, held_down, passed], shard| match shard.standing() {
            Standing::Well => [well + 1, held_down, passed],
            Standing::HeldDown => [well, held_down + 1, passed],
            Standing::PassedOver => [well, held_down, passed + 1],
            Standing::Out(_) => [well, held_down, passed],
        })
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_ring::Identity;
    use porch_fn_service::conn::Options;
    use tokio::time::Instant;

    use super::*;
    use crate::wellness::{Reason, Sign};

    fn serving(place: u16, returned: bool) -> Arc<Shard> {
        let second = Duration::from_secs(1);
        let options = Options { connect_timeout: second, ping: None, user_timeout: second, keepalive: None };
        let (identity, changed) = (Identity::from(format!("10.0.0.{place}:9445")), Arc::default());
        let shard = Shard::new(identity, returned, options, None, Instant::now(), changed);
        let shard = Arc::new(shard.unwrap());
        shard.note(Sign::Serving);
        shard
    }

    #[tokio::test(start_paused = true)]
    async fn runners_that_came_back_to_discovery_and_to_health_count_together() {
        let shards = vec![serving(1, false), serving(2, false), serving(3, true), serving(4, false)];
        let ring = Ring::new(shards.iter().map(|shard| shard.identity().clone())).unwrap();
        let view = View::new(ring, shards);
        assert_eq!(view.usable(), (Tier::Well, 3));
        view.shards()[3].note(Sign::Bad(Reason::Unreachable));
        assert_eq!(view.usable(), (Tier::Well, 2));
        view.shards()[3].note(Sign::Serving);
        assert_eq!(view.usable(), (Tier::WellAndHeldDown, 4));
    }
}
