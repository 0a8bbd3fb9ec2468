//! Pods that have served and stop answering.

use super::rig::{NOTHING, Rig, config, limits, seconds};
use crate::config::Config;

fn quiet() -> Rig {
    Rig::with_quiet_pods(limits(1, 2), &[0])
}

#[test]
fn a_pod_with_calls_is_checked_after_a_second_without_an_answer() {
    let mut rig = quiet();
    rig.run("request 1 ..; pass 2 -> check u0"); // one check
    rig.run("checked 0 1 true; pass 1 -> check u0"); // the next check, while the call runs
    rig.run("pass 1 ..; served 1; checked 0 2 false"); // the call was answered after the check began
    rig.run("request 2 ..; pass 2 -> check u0; checked 0 2 false"); // the answer to an earlier check
    rig.run("checked 0 3 false -> cut u0 + probe u0; broken 2 ..; ready 0 ..; pass 10"); // an idle pod is not checked
}

#[test]
fn a_silent_pod_is_replaced_at_once_and_may_serve_again() {
    let mut rig = quiet();
    rig.run("request 1 ..; pass 2 ..; request 2 -> grant 2 u0"); // u0 is used until the check fails
    rig.run("checked 0 1 false -> cut u0 + probe u0; request 3 -> create 1; broken 1; broken 2");
    rig.run("created 1 ..; ready 1 -> grant 3 u1; request 4 -> grant 4 u1");
    rig.run("ready 0; request 5 -> grant 5 u0"); // u0 serves again
}

#[test]
fn a_silent_connection_counts_at_once_and_other_losses_after_three_seconds() {
    quiet().run("request 1 ..; silent 1 -> cut u0 + probe u0; request 2 -> create 1");
    quiet().run("request 1 ..; broken 1 -> probe u0; request 2; pass 2; pass 2 -> create 1");
}

#[test]
fn a_call_that_ends_by_its_deadline_causes_a_check() {
    let mut rig = quiet();
    rig.run("request 1 ..; late 1 7 -> check u0; checked 0 1 true"); // the function is slow
    rig.run("request 2 ..; pass 2 -> check u0; late 2 8 -> check u0"); // a check after a deadline has less time
    rig.run("checked 0 2 false; checked 0 3 true; counts -> 1 0 0 0"); // the answer to the last check counts
}

/// Two calls on pod 0 reach their deadlines after at least `seconds`. `in_a_row`: they do not
/// overlap. `elsewhere`: pod 1 serves a call in between. Returns the actions at the last deadline.
fn two_late(packages: [u64; 2], seconds: u64, elsewhere: bool, in_a_row: bool) -> Vec<String> {
    let mut rig = Rig::with_pods(limits(2, 9), &[0, 1]);
    rig.run("request 1 -> grant 1 u0; request 2 -> grant 2 u1");
    // Sends calls until pod 0 gets one. Returns the number of that call.
    let second = |rig: &mut Rig| {
        (3..9).find(|id| rig.act(&format!("request {id}")) == [format!("grant {id} u0")]).unwrap()
    };
    let early = (!in_a_row).then(|| second(&mut rig));
    rig.run(&format!("pass {seconds} ..; late 1 {} ..; pass 1 ..", packages[0]));
    if elsewhere {
        rig.run("served 2");
    }
    let second = early.unwrap_or_else(|| second(&mut rig));
    rig.pass(seconds);
    rig.act(&format!("late {second} {}", packages[1]))
}

#[test]
fn a_pod_is_given_up_if_two_packages_in_a_row_hang_and_another_pod_serves() {
    assert_eq!(two_late([1, 2], 10, true, true), ["delete u0 Hung"]);
    assert_eq!(two_late([1, 1], 10, true, true), NOTHING, "the package may be the cause");
    assert_eq!(two_late([1, 2], 5, true, true), NOTHING, "the calls had little time");
    assert_eq!(two_late([1, 2], 10, false, true), NOTHING, "the function may be the cause");
    assert_eq!(two_late([1, 2], 10, true, false), NOTHING, "the calls may have slowed each other down");
}

#[test]
fn a_pod_that_was_never_reached_does_not_delay_calls() {
    let mut rig = Rig::new(config());
    // The node may have failed, with the pod and the pod's owner on it.
    rig.run("see 0 running ..; request 1; pass 2; pass 2 -> create 1; ready 0 -> grant 1 u0");
}

#[test]
fn calls_for_a_lost_pod_wait_until_their_deadlines() {
    let mut rig = Rig::with_quiet_pods(Config { ready_timeout: seconds(20), ..limits(1, 2) }, &[0]);
    rig.run("disown; request 1 ..; silent 1 ..; request 2 within 100 -> create 1 + probe u0");
    rig.run("creation 1 Unreachable; pass 99 about reject; pass 2 about reject -> reject 2 DeadlineExceeded");
}

#[test]
fn a_pending_pod_stays_although_its_waiting_calls_are_rejected() {
    let patient = || Config { pending_timeout: seconds(300), ..config() };
    let mut rig = Rig::new(patient());
    rig.run("request 1 within 280 -> create 0; created 0 -> probe u0; see 0 ..");
    rig.run("pass 61 -> reject 1 NotReady; request 2 within 100"); // the pod may still become ready
    rig.run("pass 61 -> reject 2 NotReady");
    // The image is pulled. The pod's time to become ready starts now.
    rig.run("pass 120 ..; see 0 running ..; pass 59; ready 0; request 3 -> grant 3 u0");

    let mut rig = Rig::new(patient());
    rig.run("request 1 within 280 ..; created 0 ..; see 0 ..; pass 61 ..");
    rig.run("pass 240 -> delete u0 Failed"); // the pending timeout has passed
}
