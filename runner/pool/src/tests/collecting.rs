//! What the owner deletes, and what it must not.

use super::rig::{NOTHING, Rig, config, limits, uid};
use crate::event::{Action, DeleteReason, Event, WriteOutcome};
use crate::types::{Pod, PodName, ResourceVersion};

#[test]
fn an_unused_pod_goes_at_the_first_scan_past_its_reclaim_after() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    rig.see_lapsing(0, 100);
    assert_eq!(rig.pass(100), NOTHING, "not before");
    assert_eq!(rig.pass(60), ["delete u0 Expired"]);
    assert_eq!(rig.counts(), [1, 0, 0, 0], "a fresh one stays");
    rig.deleted(0, WriteOutcome::Ok);
    rig.gone(0);
    assert_eq!(rig.pass(1600), NOTHING);
    assert_eq!(rig.pass(100), ["delete u1 Expired"]);
    rig.gone(1);
    assert!(rig.pool.is_empty(), "and with the last pod the image");
}

#[test]
fn a_delete_carries_what_was_judged() {
    let mut rig = Rig::with_pods(config(), &[0]);
    let pod = Pod { resource_version: "77".into(), ..rig.lapsing(0, 1) };
    rig.seen(pod);
    rig.now = rig.now + super::rig::seconds(60);
    let actions = rig.pool.step(Event::Tick, rig.now);
    let expected = Action::Delete {
        uid: uid(0),
        resource_version: ResourceVersion::from("77"),
        name: super::rig::name(0),
        reason: DeleteReason::Expired,
    };
    assert_eq!(actions, [expected]);
}

#[test]
fn a_pod_in_use_or_wanted_is_not_collected() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.request(1);
    assert_eq!(rig.see_lapsing(0, 1), ["push u0 +1800"]);
    assert_eq!(rig.pass(59), NOTHING, "the push has no answer yet, and the call runs");

    let mut rig = Rig::with_pods(config(), &[0]);
    rig.see_lapsing(0, 1);
    assert_eq!(rig.pass(28), NOTHING);
    assert_eq!(rig.request(1), ["push u0 +1800"]);
    rig.pushed(0, WriteOutcome::Conflict);
    assert_eq!(rig.pass(4), NOTHING, "a scan, but a call waits for the pod");
    assert_eq!(rig.pass(1), ["push u0 +1800"]);
}

#[test]
fn only_the_owner_collects() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.own(false);
    assert_eq!(rig.pass(4000), NOTHING);
    assert_eq!(rig.own(true), NOTHING);
    assert_eq!(rig.pass(60), ["delete u0 Expired"]);
}

#[test]
fn a_pod_on_its_way_out_is_not_granted() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.see_lapsing(0, 1);
    assert_eq!(rig.pass(60), ["delete u0 Expired"]);
    assert_eq!(rig.request(1), NOTHING, "the delete is under way");
    assert_eq!(rig.deleted(0, WriteOutcome::Ok), ["create 1"]);
    assert_eq!(rig.see_terminating(0, 30), NOTHING);
    assert_eq!(rig.gone(0), NOTHING);
}

#[test]
fn a_conflict_forgets_the_judgement() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.see_lapsing(0, 1);
    rig.pass(60);
    let pushed = rig.pod(0);
    rig.deleted(0, WriteOutcome::Conflict);
    rig.seen(pushed);
    assert_eq!(rig.request(1), ["grant 1 u0"], "another runner has pushed it");
    rig.served(1);
    assert_eq!(rig.pass(1000), NOTHING);
}

#[test]
fn a_lost_answer_is_judged_anew() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.see_lapsing(0, 1);
    rig.pass(60);
    rig.deleted(0, WriteOutcome::Unreachable);
    assert_eq!(rig.request(1), NOTHING, "it may be terminating");
    assert_eq!(rig.pass(5), ["push u0 +1800"], "or not: the push will tell");
    rig.cancel(1);
    rig.pushed(0, WriteOutcome::Conflict);
    assert_eq!(rig.pass(55), NOTHING, "an answer that is missing is a gap");
    assert_eq!(rig.pass(65), ["delete u0 Expired"]);
}

#[test]
fn after_a_gap_one_scan_interval_passes_first() {
    let mut rig = Rig::with_pods(config(), &[0]);
    let pod = rig.lapsing(0, 1);
    rig.seen(pod.clone());
    rig.step(Event::WatchLost);
    assert_eq!(rig.pass(300), NOTHING);
    rig.step(Event::Synced(vec![pod.clone()]));
    assert_eq!(rig.pass(59), NOTHING);
    assert_eq!(rig.pass(61), ["delete u0 Expired"]);

    // A list without a gap is no reason to wait.
    rig.deleted(0, WriteOutcome::Conflict);
    rig.step(Event::Synced(vec![pod]));
    assert_eq!(rig.pass(60), ["delete u0 Expired"]);
}

#[test]
fn the_owner_gives_a_lifetime_to_a_pod_without_one() {
    let mut rig = Rig::with_pods(config(), &[0]);
    assert_eq!(rig.see_as(0, |pod| Pod { reclaim_after: None, ..pod }), ["push u0 +1800"]);

    rig.own(false);
    rig.pushed(0, WriteOutcome::Conflict);
    assert_eq!(rig.pass(600), NOTHING, "the owner alone");
}

#[test]
fn an_error_about_one_image_is_no_gap_for_the_others() {
    for (result, others_wait) in [(WriteOutcome::Unknown, false), (WriteOutcome::Unreachable, true)] {
        let mut rig = Rig::with_pods(config(), &[0]);
        rig.see_lapsing(0, 1);
        assert_eq!(rig.pass(60), ["delete u0 Expired"]);
        let name = PodName { image: "registry/other:v1".into(), slot: 0, past: None };
        let other = Pod { name, uid: "other".into(), ..rig.lapsing(0, 30) };
        rig.seen(other);
        rig.pass(29);
        rig.deleted(0, result);
        let lines = rig.pass(59);
        assert_eq!(
            lines.iter().any(|line| line == "delete other Expired"),
            !others_wait,
            "{result:?}: {lines:?}"
        );
        assert!(!lines.iter().any(|line| line == "delete u0 Expired"), "{result:?}: {lines:?}");
    }
}
