//! What somebody should look into, in words: where runners do not agree. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::gathered::Gathered;
use crate::shards::ShardInfo;

/// Notes on `shards`, the ring of this router, and what they told.
pub(super) fn notes(shards: &[ShardInfo], gathered: &Gathered) -> Vec<String> {
    let told: Vec<_> =
        shards.iter().filter_map(|shard| gathered.shards.get(&shard.address)?.as_ref()).collect();
    let mut notes = Vec::new();
    let unlisted = shards.iter().filter(|shard| !shard.listed).count();
    if unlisted > 0 {
        notes.push(format!(
            "Discovery no longer lists {unlisted} of {} runners, which answer health checks: they stay for up to 5 minutes \
             when it lists none, and for 30 s when it lists others. Check the Service and the readiness of its pods.",
            shards.len()
        ));
    }
    let mut configs: BTreeMap<&str, usize> = BTreeMap::new();
    for shard in &told {
        *configs.entry(&shard.exec_hash).or_default() += 1;
    }
    if configs.len() > 1 {
        let counts: Vec<_> = configs
            .iter()
            .map(|(hash, count)| format!("{count} with {}", if hash.is_empty() { "none" } else { hash }))
            .collect();
        notes.push(format!(
            "The runners' exec configurations differ ({}): which function runs depends on the runner that a call reaches. \
             Give all of them the same --config, --functions and --disable-runtimes.",
            counts.join(", ")
        ));
    }
    let own: BTreeSet<_> = shards.iter().map(|shard| shard.address.as_str()).collect();
    let differs = |ring: &BTreeSet<String>| !ring.iter().map(String::as_str).eq(own.iter().copied());
    let others = told.iter().filter(|shard| shard.ring.as_ref().is_some_and(differs)).count();
    if others > 0 {
        notes.push(format!(
            "{others} of {} runners see other members on the ring than this router: so it is for a moment when runners come \
             and go; if it stays, compare --peers with the router's --runners.",
            shards.len()
        ));
    }
    let older = shards.iter().filter(|shard| gathered.shards.get(&shard.address) == Some(&None)).count();
    if older > 0 {
        notes.push(format!(
            "{older} of {} runners cannot tell what they hold: they are of an older version. Their pods are not shown.",
            shards.len()
        ));
    }
    notes
}
