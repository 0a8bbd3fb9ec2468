//! How many pods, and under which names.

use super::rig::{NOTHING, Rig, config, limits};
use crate::config::{Config, Limits};
use crate::event::{Creation, Event};
use crate::types::{Pod, PodName};

#[test]
fn four_calls_with_a_waitlist_of_two_make_exactly_two_pods() {
    let mut rig = Rig::new(limits(3, 2));
    assert_eq!(rig.request(1), ["create 0"]);
    assert_eq!(rig.request(2), NOTHING);
    assert_eq!(rig.request(3), ["create 1"]);
    assert_eq!(rig.request(4), NOTHING);
    rig.created(0);
    rig.created(1);
    assert_eq!(rig.ready(0).len(), 4, "a ready pod with room serves all of them at once");
    rig.ready(1);
    assert_eq!(rig.counts(), [2, 0, 4, 0]);
}

#[test]
fn four_calls_on_one_warm_pod_make_exactly_two_pods() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0]);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    assert_eq!(rig.request(2), ["grant 2 u0"]);
    assert_eq!(
        rig.request(3),
        ["grant 3 u0", "create 1"],
        "served at once, and one more pod for those to come"
    );
    assert_eq!(rig.request(4), ["grant 4 u0"]);
    assert_eq!(rig.request(5), ["grant 5 u0", "create 2"]);
    assert_eq!(rig.request(6), ["grant 6 u0"]);
    assert_eq!(rig.request(7), ["grant 7 u0"], "the limit");
}

#[test]
fn calls_that_run_on_one_pod_do_not_start_a_second_while_another_is_idle() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0, 1]);
    for id in 0..6 {
        rig.request(id);
    }
    // Slot 2 was started by the fifth call. All calls on pod 1 end.
    for id in [1, 3, 5] {
        rig.served(id);
    }
    rig.created(2);
    rig.ready(2);
    assert_eq!(rig.request(10), ["grant 10 u2"]);
    assert_eq!(rig.request(11), ["grant 11 u1"], "pod 0 has three calls, yet nothing is started");
}

#[test]
fn a_full_pod_has_its_share_of_the_waiting_calls() {
    let limits = Limits { max_pods: 2, per_pod: 1, ..config().limits };
    let mut rig = Rig::with_pods(Config { limits, ..config() }, &[0]);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    assert_eq!(rig.request(2), NOTHING, "one in flight and one waiting: no more than the waitlist");
    assert_eq!(rig.request(3), ["create 1"]);
}

#[test]
fn a_limit_of_zero_counts_as_one() {
    let limits = Limits { max_pods: 0, waitlist: 0, per_pod: 0, queue: 0, ..config().limits };
    let mut rig = Rig::new(Config { limits, ..config() });
    assert_eq!(rig.request(1), ["create 0"]);
    assert_eq!(rig.request(2), ["reject 2 QueueFull"]);
    rig.created(0);
    assert_eq!(rig.ready(0), ["grant 1 u0"]);
}

#[test]
fn the_lowest_free_slot_is_used() {
    let mut rig = Rig::with_pods(limits(3, 1), &[0, 1, 2]);
    rig.gone(1);
    rig.request(1);
    rig.request(2);
    assert_eq!(rig.request(3), ["grant 3 u0", "create 1"], "and never the name of a pod that lives");
}

#[test]
fn a_pod_left_in_the_surge_slot_counts() {
    let mut rig = Rig::with_pods(limits(2, 1), &[1, 2]);
    assert_eq!(rig.request(1), ["grant 1 u1"]);
    assert_eq!(rig.request(2), ["grant 2 u2"]);
    assert_eq!(rig.request(3), ["grant 3 u1"], "two pods are the limit, although slot 0 is free");
    rig.gone(1);
    assert_eq!(rig.request(4), ["grant 4 u2", "create 0"]);
}

#[test]
fn a_terminating_pod_keeps_its_name_until_it_is_gone() {
    let mut rig = Rig::with_pods(limits(1, 2), &[0]);
    rig.see_terminating(0, 30);
    assert_eq!(rig.request(1), ["create 1"], "no other one answers");
    assert_eq!(rig.creation(1, Creation::Exists), NOTHING);
    assert_eq!(rig.see_terminating(1, 30), NOTHING, "both names are taken");
    assert_eq!(rig.pass(20), NOTHING);
    assert_eq!(rig.gone(0), ["create 0"]);
}

#[test]
fn a_pod_stuck_in_termination_is_passed() {
    let mut rig = Rig::with_pods(limits(1, 2), &[0, 1]);
    for (slot, span) in [(0, 30), (1, 300)] {
        rig.see_terminating(slot, span);
    }
    assert_eq!(rig.request(1), NOTHING);
    assert_eq!(rig.pass(39), NOTHING, "ten seconds past its deletion timestamp");
    assert_eq!(rig.pass(1), ["create 0 past u0"]);

    // The one that passed it gets stuck as well.
    let past = PodName { past: Some(super::rig::uid(0)), ..super::rig::name(0) };
    let second = Pod { name: past, uid: "second".into(), ..rig.terminating(0, 0) };
    rig.seen(second);
    rig.step(Event::Created {
        name: PodName { past: Some(super::rig::uid(0)), ..super::rig::name(0) },
        result: crate::event::Creation::Exists,
    });
    assert_eq!(rig.pass(10), ["create 0 past second"]);
}

#[test]
fn a_limit_that_is_lowered_retires_what_is_above_it() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0, 1, 2]);
    rig.config.limits.max_pods = 2;
    rig.step(Event::Configure(rig.config.clone()));
    assert_eq!(rig.pass(60), ["push u2 +60"], "notice");
    rig.see_lapsing(2, 60);
    rig.request(1);
    rig.request(2);
    assert_eq!(rig.request(3), ["grant 3 u0"], "the others take the calls, although they have some");
    let lines = rig.pass(125);
    assert_eq!(lines.iter().filter(|line| line.contains("u2")).collect::<Vec<_>>(), ["delete u2 Surplus"]);
}

#[test]
fn a_limit_that_is_raised_takes_effect_at_once() {
    let mut rig = Rig::new(limits(1, 1));
    rig.request(1);
    assert_eq!(rig.request(2), NOTHING);
    rig.config.limits.max_pods = 2;
    assert_eq!(rig.step(Event::Configure(rig.config.clone())), ["create 1"]);
}
