//! `reclaim_after`: pushed when used, and pushed first when it is close.

use super::rig::{NOTHING, Rig, config, seconds};
use crate::config::{Config, Limits};
use crate::event::WriteOutcome;
use crate::types::Pod;

/// A ready pod that lapses in so many seconds.
fn lapsing(span: u64) -> Rig {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.see_lapsing(0, span);
    rig
}

#[test]
fn a_use_pushes_once_it_lags_behind_by_the_throttle() {
    let mut rig = lapsing(1741);
    assert_eq!(rig.request(1), ["grant 1 u0"], "59 s behind");
    rig.served(1);
    rig.pass(1);
    assert_eq!(rig.request(2), ["grant 2 u0", "push u0 +1800"], "60 s behind");
    assert_eq!(rig.request(3), ["grant 3 u0"], "one at a time");
    assert_eq!(rig.write(0), NOTHING);
    assert_eq!(rig.request(4), ["grant 4 u0"]);
}

#[test]
fn a_long_deadline_reserves_the_pod_for_as_long() {
    let mut rig = lapsing(1800);
    assert_eq!(rig.request_within(1, 2400), ["grant 1 u0", "push u0 +2400"]);
    let mut rig = lapsing(1800);
    assert_eq!(rig.request_within(1, 86_400), ["grant 1 u0", "push u0 +3600"], "an hour at most");
}

#[test]
fn calls_in_flight_push_again_and_idle_pods_do_not() {
    let mut rig = lapsing(1800);
    rig.request(1);
    assert_eq!(rig.pass(59), NOTHING);
    assert_eq!(rig.pass(1), ["push u0 +1800"]);
    rig.write(0);
    assert_eq!(rig.pass(60), ["push u0 +1800"]);
    rig.write(0);
    rig.served(1);
    assert_eq!(rig.pass(600), NOTHING);
}

#[test]
fn close_to_the_lapse_the_push_comes_first() {
    let mut rig = lapsing(31);
    assert_eq!(rig.request(1), ["grant 1 u0", "push u0 +1800"], "31 s are safe by every clock");

    for span in [30, 0] {
        let mut rig = lapsing(span);
        assert_eq!(rig.request(1), ["push u0 +1800"]);
        assert_eq!(rig.request(2), NOTHING);
        assert_eq!(rig.write(0), ["grant 1 u0", "grant 2 u0"]);
    }
}

#[test]
fn a_pod_without_reclaim_after_is_pushed_first() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.own(false);
    assert_eq!(rig.see_as(0, |pod| Pod { reclaim_after: None, ..pod }), NOTHING);
    assert_eq!(rig.request(1), ["push u0 +1800"]);
}

#[test]
fn without_the_api_server_the_pod_is_used_anyway() {
    let mut rig = lapsing(10);
    rig.request(1);
    assert_eq!(rig.pushed(0, WriteOutcome::Unreachable), ["grant 1 u0"]);
    assert_eq!(rig.request(2), ["grant 2 u0"], "nobody waits again");
    assert_eq!(rig.pass(4), NOTHING);
    assert_eq!(rig.pass(1), ["push u0 +1800"], "tried again");
    assert_eq!(rig.request(3), ["grant 3 u0"], "and not waited for");
    rig.pushed(0, WriteOutcome::Unreachable);
    for id in 1..=3 {
        rig.served(id);
    }
    rig.pass(60);
    assert_eq!(rig.request(4), ["push u0 +1800"], "much later it must be asked again");
}

#[test]
fn an_answer_that_never_comes_counts_as_unreachable() {
    let mut rig = lapsing(10);
    rig.request(1);
    assert_eq!(rig.pass(60), ["grant 1 u0"]);
}

#[test]
fn a_conflict_means_look_again() {
    let mut rig = lapsing(10);
    rig.request(1);
    assert_eq!(rig.pushed(0, WriteOutcome::Conflict), NOTHING);
    assert_eq!(rig.see_lapsing(0, 10), ["push u0 +1800"], "against what it is now");
    assert_eq!(rig.see(0), ["grant 1 u0"], "another runner has pushed it");
    assert_eq!(rig.pushed(0, WriteOutcome::Conflict), NOTHING);

    let mut rig = lapsing(10);
    rig.request(1);
    rig.pushed(0, WriteOutcome::Conflict);
    assert_eq!(rig.pass(5), ["push u0 +1800"], "the watch may be late");
}

#[test]
fn a_pod_that_is_gone_sends_the_call_elsewhere() {
    let mut rig = lapsing(10);
    rig.request(1);
    assert_eq!(rig.pushed(0, WriteOutcome::Gone), ["create 1"], "its name is not free yet");
    assert_eq!(rig.gone(0), NOTHING);
}

#[test]
fn a_late_answer_does_not_hide_what_the_watch_has_shown_since() {
    let mut rig = lapsing(1000);
    assert_eq!(rig.request(1), ["grant 1 u0", "push u0 +1800"]);
    // The owner gives notice after our push, and its change overtakes our answer.
    rig.pass(1);
    assert_eq!(rig.see_lapsing(0, 60), ["push u0 +1800"], "an objection");
    assert_eq!(rig.pushed(0, WriteOutcome::Ok), NOTHING);
    assert_eq!(rig.pass(5), ["push u0 +1800"], "the answer to the first push says nothing about the second");
}

#[test]
fn a_short_ttl_counts_as_four_times_the_skew() {
    let limits = Limits { ttl: seconds(1), ..config().limits };
    let mut rig = Rig::new(Config { limits, ..config() });
    rig.see_lapsing(0, 20);
    rig.ready(0);
    assert_eq!(rig.request_within(1, 5), ["push u0 +120"]);

    let limits = Limits { ttl: seconds(8), ..config().limits };
    let mut rig = Rig::new(Config { limits, skew: seconds(1), ..config() });
    rig.see_lapsing(0, 1);
    rig.ready(0);
    assert_eq!(rig.request_within(1, 5), ["push u0 +8"], "with one clock it can be short");
}
