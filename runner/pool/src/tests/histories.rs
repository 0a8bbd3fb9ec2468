//! The property test runs many histories of the model. A second test proves that the model notices
//! planted faults.
//!
//! `POOL_HISTORIES` sets the number of histories. `POOL_SEED` replays one history with a trace.

use crate::model::{self, Counts, Mutant};

const QUICK: u64 = 3000;

/// Events that must each occur at least once if at least [`QUICK`] histories run.
const EXPECTED: &str = "a pod hangs, answer lost, cancelled, create: exists, create: over quota, cut, \
     delete: conflict, deleted: Evicted, deleted: Expired, deleted: Failed, deleted: Replaced, \
     deleted: Surplus, granted a pod that hangs, hung at the end, kept, outage, passed a stuck pod, \
     push: conflict, refused by a full pod, rejected: deadline, rejected: no room, rejected: not ready, \
     rejected: pod failed, rejected: queue full, request lost, restart, steady, surge, tag moved";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn add(counts: &mut Counts, more: Counts) {
    for (what, count) in more {
        *counts.entry(what).or_default() += count;
    }
}

#[test]
fn no_history_breaks_a_rule() {
    if let Some(seed) = number("POOL_SEED") {
        model::run(seed, None, true).unwrap();
        return;
    }
    let histories = number("POOL_HISTORIES").unwrap_or(QUICK);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = |first: usize| {
        let mut counts = Counts::new();
        for seed in (first as u64..histories).step_by(threads) {
            match model::run(seed, None, false) {
                Ok(more) => add(&mut counts, more),
                Err(violation) => panic!("{violation}: replay it with POOL_SEED={seed}"),
            }
        }
        counts
    };
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|first| scope.spawn(move || run(first))).collect();
        for run in runs {
            add(&mut counts, run.join().unwrap());
        }
    });
    println!("{histories} histories: {counts:#?}");
    if histories >= QUICK {
        for what in EXPECTED.split(", ") {
            assert!(counts.contains_key(what), "no history has: {what}");
        }
    }
}

/// Each mutant (a planted fault), and texts of the violations by which the model may detect it.
const NOTICED: &[(Mutant, &[&str])] = &[
    (Mutant::IgnoresCancel, &["never come to rest"]),
    (Mutant::IgnoresConcurrency, &["more calls in a pod than allowed"]),
    (Mutant::LosesRejections, &["got no answer by its deadline"]),
    (Mutant::BelievesPodsReady, &["never ready"]),
    (Mutant::WorksBeforeSync, &["before the existing ones are known"]),
    (Mutant::IgnoresOldReleases, &["pods are left"]),
    (Mutant::DropsPushes, &["while in use"]),
    (Mutant::DropsNotices, &["pods outdated"]),
    (Mutant::IgnoresGaps, &["while in use"]),
    (Mutant::OwnsEverything, &["not the owner"]),
    (Mutant::KeepsNothing, &["are to be kept", "the image is kept"]),
    (Mutant::MergesRecipeTimes, &["pods outdated", "a kept pod is outdated"]),
    (Mutant::BelievesChecks, &["is rejected although all is well"]),
    (Mutant::CreatesBeyondLimit, &["with a limit of"]),
    (Mutant::IgnoresCapacity, &["the capacity is"]),
];

#[test]
fn the_model_notices_every_mutant() {
    let unnoticed = |(mutant, words): &(Mutant, &[&str])| {
        let noticed = |seed: &u64| {
            let violation = model::run(*seed, Some(*mutant), false).err();
            violation.is_some_and(|violation| words.iter().any(|words| violation.contains(words)))
        };
        let found = (0..20_000).find(noticed);
        println!("{mutant:?}: history {found:?}");
        found.is_none().then_some(*mutant)
    };
    let (first, second) = NOTICED.split_at(NOTICED.len() / 2);
    let unnoticed: Vec<_> = std::thread::scope(|scope| {
        let other = scope.spawn(|| second.iter().filter_map(unnoticed).collect::<Vec<_>>());
        first.iter().filter_map(unnoticed).chain(other.join().unwrap()).collect()
    });
    assert_eq!(unnoticed, []);
}
