//! Pods that have served and do not answer any more.

use super::rig::{NOTHING, Rig, config, limits, seconds};
use crate::config::Config;
use crate::event::Creation;
use crate::types::{Phase, Pod};

#[test]
fn a_pod_with_calls_is_asked_when_it_was_not_heard_of_for_a_second() {
    let mut rig = Rig::with_quiet_pods(limits(1, 2), &[0]);
    rig.request(1);
    assert_eq!(rig.pass(2), ["check u0"], "once");
    assert_eq!(rig.checked(0, 1, true), NOTHING);
    assert_eq!(rig.pass(1), ["check u0"], "and again, while the call runs");
    rig.pass(1);
    rig.served(1);
    assert_eq!(rig.checked(0, 2, false), NOTHING, "it has answered the call since");
    rig.request(2);
    assert_eq!(rig.pass(2), ["check u0"]);
    assert_eq!(rig.checked(0, 2, false), NOTHING, "of an earlier check");
    assert_eq!(rig.checked(0, 3, false), ["cut u0", "probe u0"]);
    rig.broken(2);
    rig.ready(0);
    assert_eq!(rig.pass(10), NOTHING, "nobody uses it");
}

#[test]
fn a_silent_pod_is_replaced_at_once_and_comes_back() {
    let mut rig = Rig::with_quiet_pods(limits(1, 2), &[0]);
    rig.request(1);
    rig.pass(2);
    assert_eq!(rig.request(2), ["grant 2 u0"], "in use until it is known");
    assert_eq!(rig.checked(0, 1, false), ["cut u0", "probe u0"]);
    assert_eq!(rig.request(3), ["create 1"], "its name is taken, and no other pod answers");
    assert_eq!((rig.broken(1), rig.broken(2)), (vec![], vec![]));
    rig.created(1);
    assert_eq!(rig.ready(1), ["grant 3 u1"]);
    assert_eq!(rig.request(4), ["grant 4 u1"]);
    assert_eq!(rig.ready(0), NOTHING, "it serves again");
    assert_eq!(rig.request(5), ["grant 5 u0"]);
}

#[test]
fn silence_on_the_wire_counts_at_once_and_other_losses_after_three_seconds() {
    let mut rig = Rig::with_quiet_pods(limits(1, 2), &[0]);
    rig.request(1);
    assert_eq!(rig.silent(1), ["cut u0", "probe u0"]);
    assert_eq!(rig.request(2), ["create 1"]);

    let mut rig = Rig::with_quiet_pods(limits(1, 2), &[0]);
    rig.request(1);
    assert_eq!(rig.broken(1), ["probe u0"]);
    assert_eq!(rig.request(2), NOTHING, "it may be back at once");
    assert_eq!(rig.pass(2), NOTHING);
    assert_eq!(rig.pass(2), ["create 1"]);
}

#[test]
fn a_call_that_ends_by_its_deadline_makes_its_pod_suspect() {
    let mut rig = Rig::with_quiet_pods(limits(1, 2), &[0]);
    rig.request(1);
    assert_eq!(rig.late(1, 7), ["check u0"]);
    assert_eq!(rig.checked(0, 1, true), NOTHING, "the function is slow");
    rig.request(2);
    assert_eq!(rig.pass(2), ["check u0"]);
    assert_eq!(rig.late(2, 8), ["check u0"], "it has less time now");
    assert_eq!(rig.checked(0, 2, false), NOTHING, "the answer to that one counts");
    assert_eq!(rig.checked(0, 3, true), NOTHING);
    assert_eq!(rig.counts(), [1, 0, 0, 0]);
}

/// Two calls on pod 0 that end by their deadlines, of these packages, after so many seconds each.
/// What becomes of the pod.
fn two_late(packages: [u64; 2], seconds: u64, elsewhere: bool, in_a_row: bool) -> Vec<String> {
    let mut rig = Rig::with_pods(limits(2, 9), &[0, 1]);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    assert_eq!(rig.request(2), ["grant 2 u1"]);
    // The first of further calls that is on pod 0.
    let second = |rig: &mut Rig| (3..9).find(|&id| rig.request(id) == [format!("grant {id} u0")]).unwrap();
    let early = (!in_a_row).then(|| second(&mut rig));
    rig.pass(seconds);
    rig.late(1, packages[0]);
    rig.pass(1);
    if elsewhere {
        rig.served(2);
    }
    let second = early.unwrap_or_else(|| second(&mut rig));
    rig.pass(seconds);
    rig.late(second, packages[1])
}

#[test]
fn two_packages_in_a_row_that_hang_while_others_are_answered_elsewhere_cost_the_pod() {
    assert_eq!(two_late([1, 2], 10, true, true), ["delete u0 Hung"]);
    assert_eq!(two_late([1, 1], 10, true, true), NOTHING, "it may be the package");
    assert_eq!(two_late([1, 2], 5, true, true), NOTHING, "they had little time");
    assert_eq!(two_late([1, 2], 10, false, true), NOTHING, "it may be the function");
    assert_eq!(two_late([1, 2], 10, true, false), NOTHING, "they may have been in each other's way");
}

#[test]
fn a_pod_of_another_runner_that_was_never_heard_of_holds_nobody_up() {
    let mut rig = Rig::new(config());
    rig.see_as(0, |pod| Pod { phase: Phase::Running, ..pod });
    assert_eq!(rig.request(1), NOTHING);
    assert_eq!(rig.pass(2), NOTHING);
    assert_eq!(rig.pass(2), ["create 1"], "its node may have died with its owner");
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn waiters_for_a_lost_pod_wait_until_their_deadlines() {
    let mut rig = Rig::with_quiet_pods(Config { ready_timeout: seconds(20), ..limits(1, 2) }, &[0]);
    rig.own(false);
    rig.request(1);
    rig.silent(1);
    assert_eq!(rig.request_within(2, 100), ["create 1", "probe u0"]);
    rig.creation(1, Creation::Unreachable);
    let lines = rig.pass(99);
    assert!(lines.iter().all(|line| !line.starts_with("reject")), "{lines:?}");
    assert!(rig.pass(2).contains(&"reject 2 DeadlineExceeded".to_owned()));
}

#[test]
fn a_pod_that_is_pending_without_a_fault_outlives_those_who_wait_for_it() {
    let patient = || Config { pending_timeout: seconds(300), ..config() };
    let mut rig = Rig::new(patient());
    assert_eq!(rig.request_within(1, 280), ["create 0"]);
    assert_eq!(rig.created(0), ["probe u0"]);
    rig.see(0);
    assert_eq!(rig.pass(61), ["reject 1 NotReady"]);
    assert_eq!(rig.request_within(2, 100), NOTHING, "it may still come");
    assert_eq!(rig.pass(61), ["reject 2 NotReady"]);
    // The image is there: the pod has its time to become ready.
    rig.pass(120);
    rig.see_as(0, |pod| Pod { phase: Phase::Running, ..pod });
    assert_eq!(rig.pass(59), NOTHING);
    assert_eq!(rig.ready(0), NOTHING);
    assert_eq!(rig.request(3), ["grant 3 u0"]);

    let mut rig = Rig::new(patient());
    rig.request_within(1, 280);
    rig.created(0);
    rig.see(0);
    rig.pass(61);
    assert_eq!(rig.pass(240), ["delete u0 Failed"], "not for ever");
}
