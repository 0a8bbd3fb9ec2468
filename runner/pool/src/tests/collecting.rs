//! Which pods the owner deletes, and which not. A push writes a later `reclaim_after` to a pod.

use super::rig::{Rig, config, limits, name, seconds, uid};
use crate::event::{Action, DeleteReason, Event};
use crate::types::{Pod, PodName, ResourceVersion};

#[test]
fn an_unused_pod_is_deleted_at_the_first_scan_past_its_reclaim_after() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    rig.run("see 0 expiring 100; pass 100; pass 60 -> delete u0 Expired; counts -> 1 0 0 0");
    rig.run("deleted 0 Ok; gone 0; pass 1600; pass 100 -> delete u1 Expired; gone 1; is empty");
}

#[test]
fn a_delete_names_the_judged_resource_version() {
    let mut rig = Rig::with_pods(config(), &[0]);
    let pod = Pod { resource_version: "77".into(), ..rig.pod_as("0 expiring 1") };
    rig.step(Event::Seen(pod));
    rig.now = rig.now + seconds(60);
    let (uid, resource_version) = (uid(0), ResourceVersion::from("77"));
    let expected = Action::Delete { uid, resource_version, name: name(0), reason: DeleteReason::Expired };
    assert_eq!(rig.pool.step(Event::Tick, rig.now), [expected]);
}

#[test]
fn a_pod_in_use_or_wanted_is_not_collected() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("request 1 ..; see 0 expiring 1 -> push u0 +1800; pass 59"); // the push has no answer yet

    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("see 0 expiring 1; pass 28; request 1 -> push u0 +1800; pushed 0 Conflict");
    rig.run("pass 4; pass 1 -> push u0 +1800"); // no delete at the scan: a call waits for the pod
}

#[test]
fn after_a_lost_answer_the_pod_is_judged_again() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("see 0 expiring 1; pass 60 ..; deleted 0 Unreachable; request 1"); // u0 may be ending
    rig.run("pass 5 -> push u0 +1800; cancel 1; pushed 0 Conflict");
    rig.run("pass 55; pass 65 -> delete u0 Expired"); // a lost answer counts as a watch gap
}

#[test]
fn after_a_watch_gap_nothing_is_deleted_for_one_scan_interval() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("see 0 expiring 1; watch lost; pass 300; synced 0 expiring 0; pass 59");
    rig.run("pass 61 -> delete u0 Expired");
    // If no watch gap preceded the list, the pool deletes without this delay.
    rig.run("deleted 0 Conflict; synced 0 expiring 0; pass 60 -> delete u0 Expired");
}

#[test]
fn an_error_about_one_image_does_not_delay_other_images() {
    for (deleted, expected) in [
        ("deleted 0 Unknown", "pass 59 about delete -> delete other Expired"),
        ("deleted 0 Unreachable", "pass 59 about delete"),
    ] {
        let mut rig = Rig::with_pods(config(), &[0]);
        rig.run("see 0 expiring 1; pass 60 -> delete u0 Expired");
        let name = PodName { image: "registry/other:v1".into(), slot: 0, past: None };
        let other = Pod { name, uid: "other".into(), ..rig.pod_as("0 expiring 30") };
        rig.step(Event::Seen(other));
        rig.run("pass 29 ..");
        rig.run(deleted);
        rig.run(expected);
    }
}

#[test]
fn a_change_of_the_owner_starts_and_deletes_nothing() {
    let mut rig = Rig::unsynced(limits(2, 2));
    rig.run("disown; synced 0, 1; own -> probe u0 + probe u1; ready 0; ready 1; request 1 -> grant 1 u0");
    rig.run("disown; request 2 -> grant 2 u1"); // a runner that is not the owner serves too
    rig.run("served 1; served 2; pass 7200"); // only the owner deletes expired pods
}
