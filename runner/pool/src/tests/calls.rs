//! Calls: which pod, in which order, and how they end.

use std::collections::HashMap;

use super::rig::{IMAGE, NOTHING, Rig, config, limits, other, seconds};
use crate::config::{Config, Limits, Override};
use crate::event::{Event, Rejection};
use crate::types::{ImageKey, Reason, RequestId, ShardKey};

fn warm(max_pods: u32, slots: &[u32]) -> Rig {
    Rig::with_pods(limits(max_pods, 2), slots)
}

#[test]
fn the_least_loaded_pod_is_taken_and_equals_take_turns_from_the_first() {
    let mut rig = warm(3, &[0, 1, 2]);
    assert_eq!(rig.request(1), ["grant 1 u0"]);
    assert_eq!(rig.request(2), ["grant 2 u1"]);
    assert_eq!(rig.request(3), ["grant 3 u2"]);
    rig.served(2);
    assert_eq!(rig.request(4), ["grant 4 u1"], "the least loaded");
    for id in [1, 3, 4] {
        rig.served(id);
    }
    assert_eq!(rig.request(5), ["grant 5 u2"], "the turn goes on after the last one granted");
    rig.served(5);
    assert_eq!(rig.request(6), ["grant 6 u0"]);
}

#[test]
fn past_the_concurrency_of_a_pod_calls_queue_in_order() {
    let mut rig = Rig::with_pods(
        Config { limits: Limits { per_pod: 2, queue: 2, ..config().limits }, ..config() },
        &[0],
    );
    rig.request(1);
    rig.request(2);
    assert_eq!(rig.request(3), NOTHING);
    assert_eq!(rig.request(4), NOTHING);
    assert_eq!(rig.request(5), ["reject 5 QueueFull"]);
    assert_eq!(rig.served(2), ["grant 3 u0"]);
    assert_eq!(rig.request(6), NOTHING, "a place in the queue is free again");
    assert_eq!(rig.cancel(1), ["grant 4 u0"], "a caller that leaves makes room as well");
    assert_eq!(rig.served(3), ["grant 6 u0"]);
    assert_eq!(rig.counts(), [1, 0, 2, 0]);
}

#[test]
fn a_deadline_ends_the_wait_on_the_timer() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.request_within(1, 5), ["create 0"]);
    assert_eq!(rig.request_within(2, 3), NOTHING);
    assert_eq!(rig.pool.next_timer(), Some(rig.now + seconds(3)));
    assert_eq!(rig.pass(3), ["reject 2 DeadlineExceeded"]);
    assert_eq!(rig.pass(2), ["reject 1 DeadlineExceeded"]);
    assert_eq!(rig.request_within(3, 0), ["reject 3 DeadlineExceeded"], "too late from the start");
    assert_eq!(rig.counts(), [0, 1, 0, 0]);
}

#[test]
fn a_waiter_who_leaves_leaves_nothing_behind_and_its_pod_serves_the_next() {
    let mut rig = Rig::new(limits(3, 2));
    assert_eq!(rig.request(1), ["create 0"]);
    assert_eq!(rig.request(2), NOTHING);
    rig.cancel(1);
    rig.cancel(2);
    assert_eq!(rig.counts(), [0, 1, 0, 0]);
    assert_eq!(rig.request(3), NOTHING, "no second pod for those who left");
    assert_eq!(rig.request(4), NOTHING);
    rig.created(0);
    assert_eq!(rig.ready(0), ["grant 3 u0", "grant 4 u0"]);
    assert_eq!(rig.cancel(1), NOTHING);
    rig.cancel(3);
    rig.served(4);
    assert_eq!(rig.counts(), [1, 0, 0, 0]);
}

#[test]
fn a_broken_pod_is_not_handed_out_before_it_is_ready_again() {
    let mut rig = warm(1, &[0]);
    rig.request(1);
    rig.request(2);
    assert_eq!(rig.broken(1), ["probe u0"]);
    assert_eq!(rig.request(3), NOTHING);
    assert_eq!(rig.broken(2), NOTHING, "it is being probed already");
    assert_eq!(rig.ready(0), ["grant 3 u0"]);
}

#[test]
fn an_image_may_differ_and_zero_or_unknown_means_as_all() {
    let table = HashMap::from([(
        ImageKey::from(IMAGE),
        Override { limits: Limits { max_pods: 2, waitlist: 1, ..Limits::default() }, recipe: None },
    )]);
    let all = Limits { queue: 3, ..config().limits };
    let mut rig = Rig::new(Config { limits: all, overrides: super::rig::overrides(table), ..config() });
    assert_eq!(rig.request(1), ["create 0"]);
    assert_eq!(rig.request(2), ["create 1"], "its own waitlist and number of pods");
    rig.request(3);
    assert_eq!(rig.request(4), ["reject 4 QueueFull"], "the queue of all");
    let image = ImageKey::from("registry/unknown:v1");
    let key = ShardKey::from(&image);
    let mut ask = |id| {
        let deadline = rig.now + seconds(300);
        let (image, shard_key) = (image.clone(), key.clone());
        rig.step(Event::Request { id: RequestId(id), image, shard_key, deadline }).len()
    };
    assert_eq!([ask(10), ask(11), ask(12)], [1, 0, 0], "one pod, as for all");
}

#[test]
fn every_error_says_what_to_do_and_nothing_that_changes() {
    let texts = [
        Rejection::QueueFull { limit: 1000 }.to_string(),
        Rejection::DeadlineExceeded.to_string(),
        Rejection::PodFailed { reason: Reason::NameTaken }.to_string(),
        Rejection::NotReady { timeout: seconds(60), waiting: None }.to_string(),
        Rejection::NotReady { timeout: seconds(60), waiting: Some(other("unschedulable")) }.to_string(),
    ];
    assert_eq!(
        texts,
        [
            "1000 calls already wait for a pod of this function: retry later, or raise --max-queue-per-function or \
             --max-parallel-pods-per-function",
            "the deadline passed while the call waited for a pod of this function: allow a longer deadline, warm the \
             function up, or raise --max-parallel-pods-per-function",
            "the function's pod failed to start: a pod that this runner does not manage holds the name of the \
             function's pod: remove it from the function namespace",
            "no pod of this function was ready within 60s: check that its image starts in that time, or raise \
             --pod-ready-timeout",
            "no pod of this function was ready within 60s (unschedulable): check that its image starts in that time, \
             or raise --pod-ready-timeout",
        ]
    );
}

#[test]
fn a_pod_that_refuses_a_call_gets_no_more_than_it_had_for_a_while() {
    let mut rig = warm(1, &[0]);
    for id in 1..=3 {
        assert_eq!(rig.request(id), [format!("grant {id} u0")]);
    }
    assert_eq!(rig.full(3), NOTHING);
    assert_eq!(rig.request(4), NOTHING, "two are in it, and it takes no more");
    assert_eq!(rig.served(1), ["grant 4 u0"], "one of them is over");
    assert_eq!(rig.request(5), NOTHING);
    assert_eq!(rig.pass(1), ["grant 5 u0"], "others may have left it");
    assert_eq!(rig.request(6), ["grant 6 u0"]);
}
