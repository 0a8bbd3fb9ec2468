//! The owner replaces outdated pods, and no call fails. The head of `lib.rs` explains "notice",
//! "push" and "surge slot".

use super::rig::{Rig, config, limits, other};
use crate::event::{Creation, Event};
use crate::types::{Pod, PodName, Uid};

/// A rig with an outdated ready pod in slot 0, whose successor is being created in the surge slot.
fn replacing() -> Rig {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("see 0 outdated; pass 60 -> create 1; see 0 outdated");
    rig
}

#[test]
fn a_replacement_starts_the_new_pod_then_gives_notice_then_deletes() {
    let mut rig = replacing();
    rig.run("request 1 -> grant 1 u0; created 1 -> probe u1; see 1; request 2 -> grant 2 u0");
    // The old pod has calls but gets no more, whatever the load of the new pod.
    rig.run("ready 1; request 3 -> grant 3 u1; request 4 ..; request 5 -> grant 5 u1");
    rig.run("served 1; served 2 -> push u0 +60"); // u0 is idle, so the owner gives notice
    rig.run("written 0 outdated expiring 60; pass 125 about u0 -> delete u0 Replaced");
    rig.run("deleted 0 Ok; gone 0; counts -> 1 0 3 0; see 1 ..; pass 300 about create");
}

#[test]
fn a_runner_that_uses_the_old_pod_objects_and_gets_notice_again() {
    let mut rig = replacing();
    rig.run("created 1 ..; ready 1 -> push u0 +60; written 0 outdated expiring 60");
    rig.run("see 0 outdated; pass 60 -> push u0 +60"); // another runner has a call on it
}

#[test]
fn after_a_notice_another_runner_pushes_pods_in_use_and_avoids_idle_ones() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    rig.run("disown; see 0 outdated; request 1 ..; request 2 ..");
    rig.run("see 0 outdated expiring 60 -> push u0 +1800; served 1; pushed 0 Conflict"); // u0 is in use
    rig.run("see 0 outdated expiring 60"); // u0 is idle now
    for id in 10..25 {
        rig.run(&format!("request {id} -> grant {id} u1"));
    }
    rig.run("request 25"); // the call waits, because u0 is being replaced
}

#[test]
fn replacements_wait_for_ownership_starting_pods_and_surplus() {
    Rig::with_pods(config(), &[0]).run("see 0 outdated; disown; own; pass 59; pass 61 -> create 1");

    let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
    rig.run("see 0 outdated; see 1 outdated; pass 60 -> create 2; created 2 ..; pass 50");
    rig.run("ready 2 -> push u0 +60"); // u1 stays

    let mut rig = Rig::with_pods(limits(3, 2), &[0]);
    rig.run("see 0 outdated; see 1 -> probe u1; pass 59; ready 1; pass 60 -> create 2");

    let mut rig = Rig::with_pods(limits(2, 2), &[0, 5]);
    rig.run("see 0 outdated; see 5 outdated; limit 1 ..; pass 60 -> push u5 +60"); // the surplus goes first
}

#[test]
fn a_successor_that_fails_leaves_the_old_pod_in_service() {
    let mut rig = replacing();
    rig.run("created 1 ..; failed 1 image not found -> unprobe u1 + delete u1 Failed; gone 1");
    rig.run("request 1 -> grant 1 u0; served 1; pass 60 -> create 1; see 0 outdated");
    rig.run("refused 1 quota; request 2 -> grant 2 u0"); // no call is rejected

    // The successor dies before the old pod is deleted. The owner withdraws the notice.
    let mut rig = replacing();
    rig.run("created 1 ..; ready 1 ..; written 0 expiring 60");
    rig.run("failed 1 out of memory -> push u0 +1800 + delete u1 Failed; request 1 -> grant 1 u0");
}

/// After a new configuration, the pods of all images are outdated at once.
#[test]
fn one_owned_pod_in_twenty_is_replaced_at_a_time() {
    for (images, most) in [(10, 1), (200, 10)] {
        let mut rig = Rig::new(config());
        let name = |image, slot| PodName { image: format!("registry/{image}:v1").into(), slot, past: None };
        for image in 0..images {
            let uid = Uid::from(format!("of {image}"));
            let pod = Pod { name: name(image, 0), uid: uid.clone(), ..rig.pod_as("0 outdated") };
            rig.step(Event::Seen(pod));
            rig.step(Event::Ready(uid));
        }
        assert_eq!(rig.act("pass 70 about create").len(), most, "of {images}");
        // Each finished replacement makes room for another one.
        for image in 0..images {
            let result = Creation::Refused(other("quota"));
            rig.step(Event::Created { name: name(image, 1), result });
        }
        assert_eq!(rig.act("pass 10 about create").len(), most, "of {images}");
    }
}
