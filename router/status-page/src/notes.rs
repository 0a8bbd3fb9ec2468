//! Notes for the operator about runners that differ from each other or from the router. No I/O.

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
            "Discovery no longer lists {unlisted} of {} runners that answer health checks. They stay for up to \
             5 minutes if discovery lists no runner, and for 30 s if it lists others. Check the Service and the \
             readiness of its pods.",
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
            .map(|(hash, count)| format!("{count} with {}", if hash.is_empty() { "no config" } else { hash }))
            .collect();
        notes.push(format!(
            "The runners' exec configurations differ ({}), so the runner that gets a call decides which function \
             runs. Give all runners the same --config, --functions and --disable-runtimes.",
            counts.join(", ")
        ));
    }
    // Both lists are sorted.
    let differs = |ring: &[String]| !ring.iter().eq(shards.iter().map(|shard| &shard.address));
    let others = reports.iter().filter(|report| report.has_peers && differs(&report.ring)).count();
    if others > 0 {
        notes.push(format!(
            "{others} of {} runners see other members on the ring than this router. This is normal for some \
             seconds when runners start or stop. If it lasts, compare --peers with the router's --runners.",
            shards.len()
        ));
    }
    let older = shards.iter().filter(|shard| answers.runners.get(&shard.address) == Some(&None)).count();
    if older > 0 {
        notes.push(format!(
            "{older} of {} runners cannot report their pods, because they are of an older version. Their pods are \
             not shown.",
            shards.len()
        ));
    }
    notes
}
