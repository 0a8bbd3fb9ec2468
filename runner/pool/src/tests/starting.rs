//! Pods that start, or do not.

use super::rig::{NOTHING, Rig, config, limits, other, seconds};
use crate::config::{Config, Limits};
use crate::event::{Creation, Event, WriteOutcome};
use crate::types::{Phase, Pod, Reason};

#[test]
fn a_refused_create_reaches_all_who_wait() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.request(2);
    assert_eq!(
        rig.creation(0, Creation::Refused(other("quota"))),
        ["reject 1 PodFailed quota", "reject 2 PodFailed quota"]
    );
    assert_eq!(rig.request(3), ["reject 3 PodFailed quota"], "and all who come during the pause");
    rig.pass(1);
    assert_eq!(rig.request(4), ["create 0"]);
}

#[test]
fn pauses_double_up_to_thirty_seconds_and_end_with_success() {
    let mut rig = Rig::new(config());
    let mut pauses = Vec::new();
    for id in 0..7 {
        assert_eq!(rig.request(id), ["create 0"]);
        rig.creation(0, Creation::Refused(other("quota")));
        let mut pause = 0;
        while rig.request(100 + id).len() == 1 && rig.pool.stats()[0].starting == 0 {
            rig.pass(1);
            pause += 1;
        }
        // The request that ended the loop has started a pod.
        rig.creation(0, Creation::Refused(other("quota")));
        pauses.push(pause);
        rig.pass(30);
    }
    assert_eq!(pauses, [1, 4, 16, 30, 30, 30, 30], "every second pause is slept through");
    rig.request(50);
    rig.created(0);
    rig.ready(0);
    rig.gone(0);
    assert_eq!(rig.request(51), ["create 0"]);
    rig.creation(0, Creation::Refused(other("quota")));
    rig.pass(1);
    assert_eq!(rig.request(52), ["create 0"], "back to one second");
}

#[test]
fn a_pod_that_cannot_start_fails_its_waiters_and_is_deleted() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.created(0);
    assert_eq!(
        rig.failed(0, "image not found"),
        ["unprobe u0", "reject 1 PodFailed image not found", "delete u0 Failed"]
    );
    assert_eq!(rig.failed(0, "image not found"), NOTHING, "once");
    assert_eq!(rig.deleted(0, WriteOutcome::Ok), NOTHING);
    rig.gone(0);
    rig.pass(1);
    assert_eq!(rig.request(2), ["create 0"]);
}

#[test]
fn a_failure_seen_by_the_watch_is_the_same() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.created(0);
    assert_eq!(
        rig.see_as(0, |pod| Pod { phase: Phase::Failed(other("exit code 1")), ..pod }),
        ["unprobe u0", "reject 1 PodFailed exit code 1", "delete u0 Failed"]
    );
}

#[test]
fn waiters_stay_while_another_pod_is_on_its_way() {
    let mut rig = Rig::new(limits(2, 1));
    rig.request(1);
    rig.request(2);
    rig.created(0);
    rig.created(1);
    assert_eq!(rig.failed(0, "image not found"), ["unprobe u0", "delete u0 Failed"]);
    assert_eq!(rig.ready(1), ["grant 1 u1", "grant 2 u1"], "they are handed to the other pod");
}

#[test]
fn the_creator_cleans_up_and_so_does_the_owner_but_nobody_else() {
    let mut rig = Rig::new(config());
    rig.own(false);
    rig.request(1);
    rig.created(0);
    assert!(rig.failed(0, "image not found").contains(&"delete u0 Failed".to_owned()), "the creator");

    let mut rig = Rig::new(config());
    rig.own(false);
    assert_eq!(rig.see_as(0, |pod| Pod { phase: Phase::Failed(other("exit code 1")), ..pod }), NOTHING);
    assert_eq!(rig.request(1), NOTHING, "its slot is taken until the owner has deleted it");
    assert_eq!(rig.own(true), ["delete u0 Failed"]);
    assert_eq!(rig.deleted(0, WriteOutcome::Ok), ["create 1"]);
    assert_eq!(rig.gone(0), NOTHING);
}

#[test]
fn a_conflict_or_a_lost_answer_repeats_the_delete_of_a_failed_pod() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.created(0);
    rig.failed(0, "image not found");
    assert_eq!(rig.deleted(0, WriteOutcome::Conflict), NOTHING, "look again");
    assert_eq!(rig.see(0), ["delete u0 Failed"]);
    assert_eq!(rig.deleted(0, WriteOutcome::Unreachable), NOTHING);
    assert_eq!(rig.pass(5), ["delete u0 Failed"]);
    assert_eq!(rig.deleted(0, WriteOutcome::Gone), NOTHING);
    rig.pass(120);
    assert!(rig.pool.is_empty());
}

#[test]
fn a_pod_that_is_not_ready_in_time_has_failed() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.created(0);
    rig.see_as(0, |pod| Pod { phase: Phase::Running, ..pod });
    assert_eq!(rig.pass(59), NOTHING);
    assert_eq!(rig.pass(1), ["reject 1 NotReady", "delete u0 Failed"]);
    rig.deleted(0, WriteOutcome::Conflict);
    assert_eq!(rig.ready(0), NOTHING, "ready after all, before the delete succeeded");
    assert_eq!(rig.request(2), ["grant 2 u0", "push u0 +1800"]);
}

#[test]
fn a_pod_that_others_can_use_is_not_deleted_for_being_unreachable_from_here() {
    let impatient = || Config { pending_timeout: seconds(0), ..config() };
    let mut rig = Rig::with_pods(impatient(), &[0]);
    rig.request(1);
    rig.broken(1);
    rig.pass(30);
    rig.see(0);
    assert_eq!(rig.pass(30), NOTHING, "somebody pushed it meanwhile");
    assert_eq!(rig.pass(61), ["delete u0 Failed"], "but not any more");

    // A push of our own proves nothing.
    let mut rig = Rig::new(Config { scan_interval: seconds(20), ..impatient() });
    rig.pass(100);
    assert_eq!(rig.see_as(0, |pod| Pod { reclaim_after: None, ..pod }), ["push u0 +1800", "probe u0"]);
    rig.see(0);
    assert_eq!(rig.pass(61), ["delete u0 Failed"]);
}

#[test]
fn another_runners_pod_that_is_not_ready_in_time_is_left_to_its_owner() {
    let mut rig = Rig::new(config());
    rig.own(false);
    rig.see(0);
    assert_eq!(rig.request(1), ["probe u0"]);
    rig.pass(30);
    rig.request(2);
    assert_eq!(rig.pass(30), ["reject 1 NotReady", "reject 2 NotReady"], "no hope is put in it for now");
    assert_eq!(rig.request(3), NOTHING);
    assert_eq!(rig.ready(0), ["grant 3 u0", "push u0 +1800"], "the probe goes on");
}

#[test]
fn a_call_waits_for_the_ready_timeout_at_most_without_any_ready_pod() {
    let mut rig = Rig::unsynced(config());
    assert_eq!(rig.request(1), NOTHING);
    rig.pass(10);
    assert_eq!(rig.request(2), NOTHING);
    assert_eq!(rig.pass(50), [format!("reject 1 NotReady {}", Reason::NotListed)]);
    assert_eq!(rig.step(Event::Synced(Vec::new())), ["create 0"]);
    assert_eq!(rig.pass(10), ["reject 2 NotReady"]);
}

#[test]
fn waiting_for_a_busy_pod_is_not_waiting_for_a_ready_one() {
    let limits = Limits { per_pod: 1, ..config().limits };
    let mut rig = Rig::new(Config { limits, ..config() });
    rig.request(1);
    rig.created(0);
    rig.see(0);
    rig.ready(0);
    rig.request(2);
    assert_eq!(rig.pass(100).iter().filter(|line| line.starts_with("reject")).count(), 0);
    rig.broken(1);
    assert_eq!(rig.pass(50), ["create 1"], "nor is waiting for one that was lost");
}

#[test]
fn a_pod_that_vanishes_while_it_starts_is_started_again_after_a_pause() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.created(0);
    assert_eq!(rig.gone(0), ["unprobe u0"]);
    assert_eq!(rig.request(2), NOTHING, "nobody is told of a failure");
    assert_eq!(rig.pass(1), ["create 0"]);

    rig.created(0);
    assert_eq!(rig.see_terminating(0, 30), ["unprobe u0"], "somebody deletes it");
    assert_eq!(rig.gone(0), NOTHING);
    assert_eq!(rig.pass(1), NOTHING);
    assert_eq!(rig.pass(1), ["create 0"], "a longer pause");
}

#[test]
fn the_end_of_a_pod_that_served_is_no_failed_start() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.request(1);
    rig.broken(1);
    assert_eq!(rig.request(2), NOTHING);
    assert_eq!(
        rig.failed(0, "out of memory"),
        ["unprobe u0", "delete u0 Failed"],
        "the call goes on waiting"
    );
    assert_eq!(rig.ready(0), NOTHING, "a late report does not bring it back");
    assert_eq!(rig.deleted(0, WriteOutcome::Ok), ["create 1"]);
    assert_eq!(rig.gone(0), NOTHING);
}

#[test]
fn a_lost_answer_waits_for_the_watch_and_then_tries_again() {
    let mut rig = Rig::new(config());
    rig.request(1);
    assert_eq!(rig.creation(0, Creation::Unreachable), NOTHING);
    assert_eq!(rig.pass(4), NOTHING);
    assert_eq!(rig.pass(1), ["create 0"]);
    rig.creation(0, Creation::Unreachable);
    assert_eq!(rig.see(0), ["probe u0"], "it was created after all");
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn the_watch_and_the_answer_may_come_in_any_order() {
    // The watch first, down to the end of the pod.
    let mut rig = Rig::new(config());
    rig.request(1);
    assert_eq!(rig.see(0), ["probe u0"]);
    assert_eq!(rig.counts(), [0, 1, 0, 1], "one pod, not two");
    rig.gone(0);
    assert_eq!(rig.creation(0, Creation::Ok(super::rig::uid(0))), NOTHING, "it has come and gone");
    assert_eq!(rig.pass(2), ["create 0"]);

    // The answer first, and the watch never.
    rig.created(0);
    rig.ready(0);
    rig.served(1);
    rig.step(Event::WatchLost);
    rig.pass(120);
    assert_eq!(rig.counts()[0], 1, "a watch that is lost shows nothing at all");
    rig.step(Event::Synced(Vec::new()));
    rig.pass(60);
    assert_eq!(rig.request(2), ["create 0"], "what the watch does not show in time is not there");
}
