//! Notes for the operator about runners that disagree with each other or with the router. Pure.

use std::collections::BTreeMap;

use crate::answers::Answers;
use crate::shards::ShardInfo;

/// Compares `shards`, the runners on this router's ring, with their answers.
pub(crate) fn notes(shards: &[ShardInfo], answers: &Answers) -> Vec<String> {
    let reports: Vec<_> =
        shards.iter().filter_map(|shard| answers.runners.get(&shard.address)?.as_ref()).collect();
    let mut notes = Vec::new();
    let unlisted = shards.iter().filter(|shard| !shard.listed).count();
    if unlisted > 0 {
        notes.push(format!(
            "Discovery no longer lists {unlisted} of {} runners, which answer health checks. They stay for up to \
             5 minutes when it lists none, and for 30 s when it lists others. Check the Service and the readiness \
             of its pods.",
            shards.len()
        ));
    }
    let mut configs: BTreeMap<&str, usize> = BTreeMap::new();
    for report in &reports {
        *configs.entry(&report.exec_hash).or_default() += 1;
    }
    if configs.len() > 1 {
        let counts: Vec<_> = configs
            .iter()
            .map(|(hash, count)| format!("{count} with {}", if hash.is_empty() { "none" } else { hash }))
            .collect();
        notes.push(format!(
            "The runners' exec configurations differ ({}): which function runs depends on the runner that a call \
             reaches. Give all of them the same --config, --functions and --disable-runtimes.",
            counts.join(", ")
        ));
    }
    // Both are sorted.
    let differs = |ring: &[String]| !ring.iter().eq(shards.iter().map(|shard| &shard.address));
    let others = reports.iter().filter(|report| report.has_peers && differs(&report.ring)).count();
    if others > 0 {
        notes.push(format!(
            "{others} of {} runners see other members on the ring than this router. This is normal for a moment \
             when runners come and go; if it stays, compare --peers with the router's --runners.",
            shards.len()
        ));
    }
    let older = shards.iter().filter(|shard| answers.runners.get(&shard.address) == Some(&None)).count();
    if older > 0 {
        notes.push(format!(
            "{older} of {} runners cannot report what they hold: they are of an older version. Their pods are not \
             shown.",
            shards.len()
        ));
    }
    notes
}
