//! The property test: many histories of the model, and for each rule the proof that breaking it is noticed.
//!
//! `POOL_HISTORIES` sets how many (tests/run has 100,000); `POOL_SEED` replays one, with a trace.

use crate::breakage::Breakage;
use crate::model::{self, Counts};

const QUICK: u64 = 3000;

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
        for what in [
            "a pod hangs",
            "answer lost",
            "cancelled",
            "create: exists",
            "create: over quota",
            "cut",
            "delete: conflict",
            "deleted: evicted",
            "deleted: expired",
            "deleted: failed",
            "deleted: replaced",
            "deleted: surplus",
            "granted a pod that hangs",
            "hung at the end",
            "kept",
            "outage",
            "passed a stuck pod",
            "push: conflict",
            "refused by a full pod",
            "rejected: deadline",
            "rejected: no room",
            "rejected: not ready",
            "rejected: pod failed",
            "rejected: queue full",
            "request lost",
            "restart",
            "steady",
            "surge",
            "tag moved",
        ] {
            assert!(counts.contains_key(what), "no history has: {what}");
        }
    }
}

/// Breaks a rule and expects the model to say so, in some of these words.
fn notices(rule: Breakage, words: &[&str]) {
    let noticed = |seed: &u64| {
        model::run(*seed, Some(rule), false)
            .is_err_and(|violation| words.iter().any(|words| violation.contains(words)))
    };
    let found = (0..20_000).find(noticed);
    println!("{rule:?}: history {found:?}");
    assert!(found.is_some(), "{rule:?} goes unnoticed");
}

#[test]
fn notices_name_by_count() {
    notices(Breakage::NameByCount, &["while in use"]);
}

#[test]
fn notices_lose_waiters() {
    notices(Breakage::LoseWaiters, &["got no answer by its deadline"]);
}

#[test]
fn notices_uncounted_handover() {
    notices(Breakage::UncountedHandover, &["more calls in a pod than allowed"]);
}

#[test]
fn notices_cancel_keeps_load() {
    notices(Breakage::CancelKeepsLoad, &["never come to rest"]);
}

#[test]
fn notices_ignore_deadline() {
    notices(Breakage::IgnoreDeadline, &["got no answer by its deadline"]);
}

#[test]
fn notices_ready_first_starting() {
    notices(Breakage::ReadyFirstStarting, &["never ready"]);
}

#[test]
fn notices_create_before_sync() {
    notices(Breakage::CreateBeforeSync, &["before the existing ones are known"]);
}

#[test]
fn notices_adopt_only_current() {
    notices(Breakage::AdoptOnlyCurrent, &["pods are left"]);
}

#[test]
fn notices_exists_is_success() {
    notices(Breakage::ExistsIsSuccess, &["although all is well"]);
}

#[test]
fn notices_no_push_first() {
    notices(Breakage::NoPushFirst, &["while in use"]);
}

#[test]
fn notices_no_push_in_flight() {
    notices(Breakage::NoPushInFlight, &["while in use"]);
}

#[test]
fn notices_no_wait_after_gap() {
    notices(Breakage::NoWaitAfterGap, &["while in use"]);
}

#[test]
fn notices_retire_at_once() {
    notices(Breakage::RetireAtOnce, &["while in use"]);
}

#[test]
fn notices_believe_late_push() {
    notices(Breakage::BelieveLatePush, &["while in use", "outdated"]);
}

#[test]
fn notices_collect_unowned() {
    notices(Breakage::CollectUnowned, &["not the owner"]);
}

#[test]
fn notices_forget_vanished_calls() {
    notices(Breakage::ForgetVanishedCalls, &["more calls in a pod than allowed"]);
}

#[test]
fn notices_keep_unowned() {
    notices(Breakage::KeepUnowned, &["for no call by a runner that is not the owner"]);
}

#[test]
fn notices_keep_unstarted() {
    notices(Breakage::KeepUnstarted, &["are to be kept"]);
}

#[test]
fn notices_keep_unprotected() {
    notices(Breakage::KeepUnprotected, &["although it is to be kept"]);
}

#[test]
fn notices_keep_unpushed() {
    notices(Breakage::KeepUnpushed, &["a call waits although the image is kept"]);
}

#[test]
fn notices_keep_by_turns() {
    notices(Breakage::KeepByTurns, &["are to be kept"]);
}

#[test]
fn notices_unrelated_times() {
    notices(Breakage::UnrelatedTimes, &["pods outdated", "a kept pod is outdated"]);
}

#[test]
fn notices_warm_unowned() {
    notices(Breakage::WarmUnowned, &["for no call by a runner that is not the owner"]);
}

#[test]
fn notices_count_silent() {
    notices(Breakage::CountSilent, &["is rejected although all is well"]);
}

#[test]
fn notices_never_ask() {
    notices(Breakage::NeverAsk, &["is rejected although all is well"]);
}

#[test]
fn notices_wait_for_names() {
    notices(Breakage::WaitForNames, &["is rejected although all is well"]);
}

#[test]
fn notices_pass_capacity() {
    notices(Breakage::PassCapacity, &["the capacity is"]);
}

#[test]
fn notices_never_evict() {
    notices(Breakage::NeverEvict, &["is rejected although all is well"]);
}
