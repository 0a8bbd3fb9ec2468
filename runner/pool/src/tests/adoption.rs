//! Pods that exist already: after a start, a change of the owner, or a lost race.

use super::rig::{Rig, config, limits};

#[test]
fn nothing_is_created_before_the_pods_are_known() {
    let mut rig = Rig::unsynced(config());
    rig.run("request 1; watch lost; pass 5"); // a first list that fails is tolerated
    rig.run("synced 0 -> probe u0; ready 0 -> grant 1 u0");
}

#[test]
fn a_runner_that_does_not_own_a_pod_probes_it_for_a_call() {
    let mut rig = Rig::unsynced(config());
    rig.run("disown; synced 0; request 1 -> probe u0; ready 0 -> grant 1 u0");
}

#[test]
fn a_change_of_the_owner_starts_and_deletes_nothing() {
    let mut rig = Rig::unsynced(limits(2, 2));
    rig.run("disown; synced 0, 1; own -> probe u0 + probe u1; ready 0; ready 1; request 1 -> grant 1 u0");
    rig.run("disown; request 2 -> grant 2 u1"); // any runner serves
    rig.run("served 1; served 2; pass 7200"); // the owner collects
}

#[test]
fn the_loser_of_a_race_takes_the_winners_pod() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; creation 0 Exists; see 0 -> probe u0; ready 0 -> grant 1 u0");
}

#[test]
fn a_name_that_a_terminating_pod_holds_is_no_success() {
    // The watch may be later or earlier than the answer.
    for script in [
        "request 1 ..; creation 0 Exists; see 0 terminating 30 -> create 1",
        "request 1 ..; see 0 terminating 30; creation 0 Exists -> create 1",
    ] {
        let mut rig = Rig::new(config());
        rig.run(script);
        rig.run("counts -> 0 1 0 1; gone 0");
    }
}

#[test]
fn calls_of_a_pod_that_comes_back_are_still_counted() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("request 1 ..; request 2 ..; watch lost; synced; counts -> 0 0 0 0; served 1");
    rig.run("see 0 ..; counts -> 0 0 1 0"); // the list was older than the pod
    rig.run("broken 2 ..; gone 0 -> unprobe u0; is empty");
}

#[test]
fn two_pods_in_one_slot_are_both_used() {
    let mut rig = Rig::with_pods(limits(2, 2), &[0]);
    rig.run("see 0 past u9 ..; ready second; request 1 ..; request 2 -> grant 2 second");
}
