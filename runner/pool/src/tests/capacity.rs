//! The limit for the pods of all images together, and which pod is evicted at that limit.

use std::sync::Arc;

use super::rig::{Rig, config, image, made, seconds};
use crate::config::{Config, Limits};

fn room_for(capacity: u32) -> Config {
    Config { capacity: Some(capacity), ..config() }
}

/// A rig with idle pods of `f0` and `f1`. `f0` was used first.
fn with_two(config: Config) -> Rig {
    let mut rig = Rig::serving(config);
    rig.run("serve f0; serve f1");
    rig
}

#[test]
fn the_pod_unused_for_longest_is_evicted_after_a_notice() {
    let mut rig = with_two(room_for(2));
    rig.run("serve f0; call 1 f2; pass 2; pass 2 -> delete f1 Evicted + grant 1; pods -> f0 f2");
}

#[test]
fn a_call_without_a_place_is_rejected_at_its_deadline_and_a_pod_in_use_stays() {
    let mut rig = Rig::serving(room_for(1));
    rig.run("call 1 f0 -> grant 1; call 2 f1 within 90; pass 90 -> reject 2 NoRoom");
    rig.run("call 3 f1; pass 100; served 1; pass 4 -> delete f0 Evicted + grant 3");
}

#[test]
fn functions_that_wait_together_are_served_in_their_order() {
    let mut rig = with_two(room_for(2));
    (2..8).for_each(|function| rig.run(&format!("call {function} f{function}")));
    let mut order = Vec::new();
    for _ in 0..40 {
        for line in rig.pass(1) {
            if let Some(id) = line.strip_prefix("grant ") {
                order.push(id.to_owned());
                rig.run(&format!("served {id} .."));
            }
        }
    }
    assert_eq!(order.join(" "), "2 3 4 5 6 7");
}

#[test]
fn the_pool_learns_the_quota_from_refusals() {
    let mut rig = Rig { quota: 2, ..Rig::serving(config()) };
    rig.run("serve f0; serve f1; serve f2 4; pods -> f1 f2");
    // The quota is raised, and the pool tries again a minute later.
    rig.quota = 3;
    rig.run("pass 60; serve f3; pods -> f1 f2 f3");
}

#[test]
fn a_quota_used_up_by_others_is_an_error() {
    let full = || Rig { quota: 0, ..Rig::serving(config()) };
    full().run("call 1 f0 -> reject 1 PodFailed exceeded quota");
    // If there are other runners, this runner may not have seen their pods yet. So it rejects the
    // call a second later.
    full().run("own shard; call 1 f0; pass 1 -> reject 1 PodFailed exceeded quota");
}

#[test]
fn a_replacement_or_warm_up_evicts_no_pod() {
    let mut rig = with_two(room_for(2));
    rig.configure(Config { recipe: made("newer", 9000), ..room_for(2) });
    rig.run("warm; pass 600; pods -> f0 f1");
}

#[test]
fn kept_pods_wait_for_a_free_place_and_are_evicted_last() {
    let mut rig = with_two(room_for(2));
    rig.configure(Config {
        kept_images: Arc::new([(image("f9"), "registry/f9:v1".into())].into()),
        limits: Limits { min_pods: 1, ttl: seconds(120), ..config().limits },
        ..room_for(2)
    });
    rig.run("pass 60; pods -> f0 f1"); // the kept pod of f9 waits for room
    // The pod of f0 is evicted, although it was used later than the kept pod of f9.
    rig.run("pass 1900 ..; pods -> f9; serve f0; serve f1 5; pods -> f1 f9");
}

#[test]
fn a_runner_asks_the_owner_to_evict_and_pods_in_use_stay() {
    Rig::serving(room_for(1)).run("serve f0; wanted f0; pass 4 -> delete f0 Evicted");
    let mut rig = Rig::serving(room_for(1));
    rig.run("serve f0; disown; call 1 f1; pass 4"); // only the owner may delete
    assert!(rig.server.unwrap().objects.values().all(|object| object.pod.place_wanted.is_some()));
    with_two(room_for(2)).run("call 1 f2; pass 1; used f0; pass 4 -> delete f1 Evicted + grant 1");
}

/// A memory quota that has room for three small pods, but not for the large one.
#[test]
fn a_pod_too_large_for_the_quota_evicts_few_pods_and_fails_its_call() {
    let mut rig = Rig { refused: "f99", ..Rig::serving(config()) };
    (0..10).for_each(|function| rig.run(&format!("serve f{function}")));
    let lines = rig.act("call 99 f99").into_iter().chain(rig.pass(60)).collect::<Vec<_>>();
    let (rejected, deleted): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("reject"));
    assert_eq!(rejected, ["reject 99 PodFailed exceeded quota"]);
    assert!(deleted.len() <= 4, "{deleted:?}");
    rig.run("serve f100");
}
