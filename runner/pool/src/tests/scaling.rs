//! How many pods are started, and under which names.

use super::rig::{Rig, config, limits, name};
use crate::config::{Config, Limits};
use crate::event::{Creation, Event};
use crate::types::PodName;

#[test]
fn four_calls_with_a_waitlist_of_two_start_two_pods() {
    let mut rig = Rig::new(limits(3, 2));
    rig.run("request 1 -> create 0; request 2; request 3 -> create 1; request 4; created 0 ..; created 1 ..");
    rig.run("ready 0 -> grant 1 u0 + grant 2 u0 + grant 3 u0 + grant 4 u0; ready 1; counts -> 2 0 4 0");
}

#[test]
fn a_ready_pod_serves_at_once_and_another_is_started_for_later_calls() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0]);
    rig.run("request 1 -> grant 1 u0; request 2 -> grant 2 u0; request 3 -> grant 3 u0 + create 1");
    rig.run("request 4 -> grant 4 u0; request 5 -> grant 5 u0 + create 2; request 6 -> grant 6 u0");
    rig.run("request 7 -> grant 7 u0"); // the limit of three pods is reached
}

#[test]
fn no_pod_is_started_while_another_is_idle() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0, 1]);
    rig.run("request 0 ..; request 1 ..; request 2 ..; request 3 ..; request 4 ..; request 5 ..");
    // The fifth call has started slot 2. All calls on pod 1 end; pod 0 has three.
    rig.run("served 1; served 3; served 5; created 2 ..; ready 2");
    rig.run("request 10 -> grant 10 u2; request 11 -> grant 11 u1");
}

#[test]
fn calls_that_wait_for_a_full_pod_count_towards_its_waitlist() {
    let limits = Limits { max_pods: 2, per_pod: 1, ..config().limits };
    let mut rig = Rig::with_pods(Config { limits, ..config() }, &[0]);
    rig.run("request 1 -> grant 1 u0; request 2; request 3 -> create 1");
}

#[test]
fn a_limit_of_zero_counts_as_one() {
    let limits = Limits { max_pods: 0, waitlist: 0, per_pod: 0, queue: 0, ..config().limits };
    let mut rig = Rig::new(Config { limits, ..config() });
    rig.run("request 1 -> create 0; request 2 -> reject 2 QueueFull; created 0 ..; ready 0 -> grant 1 u0");
}

#[test]
fn the_lowest_free_slot_is_used_and_the_surge_slot_counts() {
    let mut rig = Rig::with_pods(limits(3, 1), &[0, 1, 2]);
    rig.run("gone 1; request 1 ..; request 2 ..; request 3 -> grant 3 u0 + create 1");

    let mut rig = Rig::with_pods(limits(2, 1), &[1, 2]);
    // Two pods are the limit, although slot 0 is free.
    rig.run("request 1 -> grant 1 u1; request 2 -> grant 2 u2; request 3 -> grant 3 u1");
    rig.run("gone 1; request 4 -> grant 4 u2 + create 0");
}

#[test]
fn a_terminating_pod_keeps_its_name_until_it_is_gone() {
    let mut rig = Rig::with_pods(limits(1, 2), &[0]);
    rig.run("see 0 terminating 30; request 1 -> create 1"); // no other pod can serve
    rig.run("creation 1 Exists; see 1 terminating 30; pass 20; gone 0 -> create 0"); // slot 0 is free again
}

#[test]
fn the_name_of_a_pod_stuck_in_termination_is_avoided() {
    let mut rig = Rig::with_pods(limits(1, 2), &[0, 1]);
    // After 40 s, u0 is ten seconds past its deletion timestamp.
    rig.run("see 0 terminating 30; see 1 terminating 300; request 1; pass 39; pass 1 -> create 0 past u0");
    // Its replacement gets stuck as well.
    rig.run("see 0 past u0 terminating 0");
    let name = PodName { past: Some("u0".into()), ..name(0) };
    rig.step(Event::Created { name, result: Creation::Exists });
    rig.run("pass 10 -> create 0 past second");
}

#[test]
fn a_lower_limit_retires_the_surplus_and_a_higher_one_takes_effect_at_once() {
    let mut rig = Rig::with_pods(limits(3, 2), &[0, 1, 2]);
    rig.run("limit 2; pass 60 -> push u2 +60; see 2 expiring 60"); // the owner gives notice (see `lib.rs`)
    // The other pods take the calls, although they have some already.
    rig.run("request 1 ..; request 2 ..; request 3 -> grant 3 u0; pass 125 about u2 -> delete u2 Surplus");

    Rig::new(limits(1, 1)).run("request 1 ..; request 2; limit 2 -> create 1");
}
