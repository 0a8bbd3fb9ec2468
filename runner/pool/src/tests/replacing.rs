//! Pods of another version are replaced by their owner, without a failed call.

use super::rig::{NOTHING, Rig, config, limits, made};
use crate::event::{Creation, Event, WriteOutcome};
use crate::types::{Pod, PodName, Uid};

fn outdated(rig: &mut Rig, slot: u32) -> Pod {
    Pod { recipe: made("old", 4000), ..rig.pod(slot) }
}

fn see_outdated(rig: &mut Rig, slot: u32) -> Vec<String> {
    rig.see_as(slot, |pod| Pod { recipe: made("old", 4000), ..pod })
}

/// With an outdated ready pod in slot 0, and the successor being created in the surge slot.
fn replacing() -> Rig {
    let mut rig = Rig::with_pods(config(), &[0]);
    see_outdated(&mut rig, 0);
    assert_eq!(rig.pass(60), ["create 1"], "the surge slot");
    see_outdated(&mut rig, 0);
    rig
}

#[test]
fn the_new_pod_first_then_notice_then_the_delete() {
    let mut rig = replacing();
    assert_eq!(rig.request(1), ["grant 1 u0"], "the old one serves meanwhile");
    let pod = rig.pod(1);
    rig.created(1);
    rig.seen(pod);
    assert_eq!(rig.request(2), ["grant 2 u0"]);
    assert_eq!(rig.ready(1), NOTHING, "the old one has calls");
    assert_eq!(rig.request(3), ["grant 3 u1"], "but gets no more");
    rig.request(4);
    assert_eq!(rig.request(5), ["grant 5 u1"], "however loaded the new one is");
    rig.served(1);
    assert_eq!(rig.served(2), ["push u0 +60"], "idle: notice is given");
    let noticed = Pod { reclaim_after: Some(rig.now + super::rig::seconds(60)), ..outdated(&mut rig, 0) };
    rig.written(noticed);
    let lines = rig.pass(125);
    assert_eq!(lines.iter().filter(|line| line.contains("u0")).collect::<Vec<_>>(), ["delete u0 Replaced"]);
    rig.deleted(0, WriteOutcome::Ok);
    rig.gone(0);
    assert_eq!(rig.counts(), [1, 0, 3, 0]);
    rig.see(1);
    assert_eq!(rig.pass(300).iter().filter(|line| line.starts_with("create")).count(), 0, "done");
}

#[test]
fn a_runner_that_uses_the_old_pod_objects_and_is_asked_again() {
    let mut rig = replacing();
    rig.created(1);
    assert_eq!(rig.ready(1), ["push u0 +60"]);
    let noticed = Pod { reclaim_after: Some(rig.now + super::rig::seconds(60)), ..outdated(&mut rig, 0) };
    rig.written(noticed);
    assert_eq!(see_outdated(&mut rig, 0), NOTHING, "another runner has a call on it");
    assert_eq!(rig.pass(60), ["push u0 +60"]);
}

#[test]
fn notice_makes_another_runner_push_what_it_uses_and_avoid_the_rest() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    rig.own(false);
    see_outdated(&mut rig, 0);
    rig.request(1);
    rig.request(2);
    let noticed = Pod { reclaim_after: Some(rig.now + super::rig::seconds(60)), ..outdated(&mut rig, 0) };
    assert_eq!(rig.seen(noticed), ["push u0 +1800"], "the objection");
    rig.served(1);
    rig.pushed(0, WriteOutcome::Conflict);
    let noticed = Pod { reclaim_after: Some(rig.now + super::rig::seconds(60)), ..outdated(&mut rig, 0) };
    assert_eq!(rig.seen(noticed), NOTHING, "idle now");
    for id in 10..25 {
        assert_eq!(rig.request(id), [format!("grant {id} u1")]);
    }
    assert_eq!(rig.request(25), NOTHING, "rather queue than use what is being replaced");
}

#[test]
fn one_at_a_time() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    for slot in [0, 1] {
        see_outdated(&mut rig, slot);
    }
    assert_eq!(rig.pass(60), ["create 2"]);
    rig.created(2);
    assert_eq!(rig.pass(50), NOTHING);
    assert_eq!(rig.ready(2), ["push u0 +60"], "and the other one stays");
}

#[test]
fn not_while_another_pod_starts_or_there_are_too_many() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0]);
    see_outdated(&mut rig, 0);
    assert_eq!(rig.see(1), ["probe u1"]);
    assert_eq!(rig.pass(59), NOTHING);
    rig.ready(1);
    assert_eq!(rig.pass(60), ["create 2"]);

    let mut rig = Rig::with_pods(limits(2, 2), &[0, 5]);
    for slot in [0, 5] {
        see_outdated(&mut rig, slot);
    }
    rig.step(Event::Configure(config()));
    assert_eq!(rig.pass(60), ["push u5 +60"], "one too many goes first");
}

#[test]
fn only_after_a_minute_of_ownership() {
    let mut rig = Rig::with_pods(config(), &[0]);
    see_outdated(&mut rig, 0);
    rig.own(false);
    rig.own(true);
    assert_eq!(rig.pass(59), NOTHING);
    assert_eq!(rig.pass(61), ["create 1"]);
}

#[test]
fn a_new_configuration_replaces_what_runs() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.config.recipe = made("newer", 6000);
    assert_eq!(rig.step(Event::Configure(rig.config.clone())), NOTHING);
    assert_eq!(rig.pass(60), ["create 1"]);
}

#[test]
fn a_successor_that_fails_leaves_the_old_pod_in_service() {
    let mut rig = replacing();
    rig.created(1);
    assert_eq!(rig.failed(1, "image not found"), ["unprobe u1", "delete u1 Failed"]);
    rig.gone(1);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    rig.served(1);
    assert_eq!(rig.pass(60), ["create 1"], "and is tried again");
    see_outdated(&mut rig, 0);
    assert_eq!(rig.creation(1, Creation::Refused(super::rig::other("quota"))), NOTHING);
    assert_eq!(rig.request(2), ["grant 2 u0"], "nobody is told of the failure");
}

#[test]
fn a_successor_that_dies_before_the_old_pod_went_gives_the_old_one_back() {
    let mut rig = replacing();
    rig.created(1);
    rig.ready(1);
    let noticed = rig.lapsing(0, 60);
    rig.written(noticed);
    assert_eq!(
        rig.failed(1, "out of memory"),
        ["push u0 +1800", "delete u1 Failed"],
        "the notice is taken back"
    );
    assert_eq!(rig.request(1), ["grant 1 u0"]);
}

#[test]
fn losing_the_ownership_ends_the_replacement_and_deletes_nothing() {
    let mut rig = replacing();
    rig.created(1);
    rig.own(false);
    assert_eq!(rig.ready(1), NOTHING);
    assert_eq!(rig.pass(4000), NOTHING);
}

/// A new configuration outdates the pods of all images at once.
#[test]
fn one_owned_pod_in_twenty_is_replaced_at_a_time() {
    for (images, most) in [(10, 1), (200, 10)] {
        let mut rig = Rig::new(config());
        for image in 0..images {
            let name = PodName { image: format!("registry/{image}:v1").into(), slot: 0, past: None };
            let uid = Uid::from(format!("of {image}"));
            rig.see_as(0, |pod| Pod { name, uid: uid.clone(), recipe: made("old", 4000), ..pod });
            rig.step(Event::Ready(uid));
        }
        let lines = rig.pass(70);
        let creates = lines.iter().filter(|line| line.starts_with("create")).count();
        assert_eq!(creates, most, "of {images}");
        // Each that is over makes room for another.
        let name = PodName { image: "registry/0:v1".into(), slot: 1, past: None };
        let refused =
            (0..images).map(|image| PodName { image: format!("registry/{image}:v1").into(), ..name.clone() });
        for name in refused {
            rig.step(Event::Created { name, result: Creation::Refused(super::rig::other("quota")) });
        }
        let lines = rig.pass(10);
        let creates = lines.iter().filter(|line| line.starts_with("create")).count();
        assert_eq!(creates, most, "of {images}: {lines:?}");
    }
}
