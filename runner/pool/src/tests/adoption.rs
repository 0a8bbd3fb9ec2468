//! Pods that are already there: after a start, a move of the shard, or a lost race.

use super::rig::{NOTHING, Rig, config, limits, name, uid};
use crate::event::{Creation, Event, Verdict};
use crate::types::{Pod, PodName, RequestId};

#[test]
fn nothing_is_created_before_the_pods_are_known() {
    let mut rig = Rig::unsynced(config());
    assert_eq!(rig.request(1), NOTHING);
    assert_eq!(rig.step(Event::WatchLost), NOTHING, "a first list that fails is tolerated");
    assert_eq!(rig.pass(5), NOTHING);
    let pod = rig.pod(0);
    assert_eq!(rig.step(Event::Synced(vec![pod])), ["probe u0"]);
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn a_runner_that_does_not_own_a_pod_looks_at_it_when_it_wants_it() {
    let mut rig = Rig::unsynced(config());
    rig.own(false);
    let pod = rig.pod(0);
    assert_eq!(rig.step(Event::Synced(vec![pod])), NOTHING);
    assert_eq!(rig.request(1), ["probe u0"], "no create");
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn a_shard_that_moves_starts_and_deletes_nothing() {
    let mut rig = Rig::unsynced(limits(2, 2));
    rig.own(false);
    let pods = vec![rig.pod(0), rig.pod(1)];
    rig.step(Event::Synced(pods));
    assert_eq!(rig.own(true), ["probe u0", "probe u1"]);
    rig.ready(0);
    rig.ready(1);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    assert_eq!(rig.own(false), NOTHING);
    assert_eq!(rig.request(2), ["grant 2 u1"], "any runner serves");
    rig.served(1);
    rig.served(2);
    assert_eq!(rig.pass(7200), NOTHING, "and leaves collecting to the owner");
}

#[test]
fn the_loser_of_a_race_takes_the_winners_pod() {
    let mut rig = Rig::new(config());
    rig.request(1);
    assert_eq!(rig.creation(0, Creation::Exists), NOTHING);
    assert_eq!(rig.see(0), ["probe u0"]);
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn a_name_that_is_taken_by_a_terminating_pod_is_no_success() {
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.creation(0, Creation::Exists);
    assert_eq!(rig.see_terminating(0, 30), ["create 1"], "not a pod on its way");
    assert_eq!(rig.counts(), [0, 1, 0, 1]);
    assert_eq!(rig.gone(0), NOTHING);

    // The watch may have been first.
    let mut rig = Rig::new(config());
    rig.request(1);
    rig.see_terminating(0, 30);
    assert_eq!(rig.creation(0, Creation::Exists), ["create 1"]);
    assert_eq!(rig.counts(), [0, 1, 0, 1]);
    assert_eq!(rig.gone(0), NOTHING);
}

#[test]
fn calls_of_a_pod_that_comes_back_are_still_counted() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.request(1);
    rig.request(2);
    rig.step(Event::WatchLost);
    rig.step(Event::Synced(Vec::new()));
    assert_eq!(rig.counts(), [0; 4]);
    assert_eq!(rig.served(1), NOTHING);
    rig.see(0);
    assert_eq!(rig.counts(), [0, 0, 1, 0], "the list was older than the pod");
    rig.step(Event::Finished { id: RequestId(2), verdict: Verdict::Broken });
    rig.gone(0);
    assert!(rig.pool.is_empty());
}

#[test]
fn two_pods_in_one_slot_are_both_used() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0]);
    let past = PodName { past: Some(uid(9)), ..name(0) };
    rig.see_as(0, |pod| Pod { name: past, uid: "second".into(), ..pod });
    rig.step(Event::Ready("second".into()));
    rig.request(1);
    assert_eq!(rig.request(2), ["grant 2 second"]);
}
