//! Warm-ups: one pod, once, started by the owner alone.

use std::sync::Arc;

use super::rig::{IMAGE, NOTHING, Rig, config, other};
use crate::event::{Creation, Event, OwnedShards};
use crate::types::ShardKey;

fn warm() -> Event {
    Event::Warm { image: IMAGE.into(), shard_key: IMAGE.into() }
}

fn owns(rig: &mut Rig, owned: bool) -> Vec<String> {
    rig.step(Event::Own(OwnedShards::Of(Arc::new(move |_: &ShardKey| owned))))
}

#[test]
fn a_warm_up_starts_one_pod_and_is_content_with_one_that_is_there() {
    let mut rig = Rig::unsynced(config());
    assert_eq!(rig.step(warm()), NOTHING, "not before the pods are known");
    assert_eq!(rig.step(Event::Synced(Vec::new())), ["create 0"]);
    assert_eq!(rig.step(warm()), NOTHING);
    rig.created(0);
    rig.ready(0);
    assert_eq!(rig.step(warm()), NOTHING);
    rig.gone(0);
    assert!(rig.pool.is_empty(), "it is asked for once");
}

#[test]
fn a_warm_up_survives_failures_and_is_given_up_in_the_end() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.step(warm()), ["create 0"]);
    for pause in [1, 2, 4, 8] {
        assert_eq!(rig.creation(0, Creation::Refused(other("registry away"))), NOTHING);
        assert_eq!(rig.pass(pause - 1), NOTHING);
        assert_eq!(rig.pass(1), ["create 0"], "after {pause} s");
    }
    rig.creation(0, Creation::Refused(other("registry away")));
    assert_eq!(rig.pass(3600), NOTHING);
    assert!(rig.pool.is_empty(), "given up");
    assert_eq!(rig.step(warm()), ["create 0"], "but may be asked for again");

    // A pod that fails is a try like any other, and so is one that nobody answered for.
    rig.created(0);
    assert_eq!(rig.failed(0, "exit code 1"), ["unprobe u0", "delete u0 Failed"]);
    rig.gone(0);
    assert_eq!(rig.pass(1), ["create 0"]);
    rig.creation(0, Creation::Unreachable);
    assert_eq!(rig.pass(5), ["create 0"]);
    rig.created(0);
    rig.ready(0);
    rig.gone(0);
    rig.pass(120);
    assert!(rig.pool.is_empty(), "it succeeded");
}

#[test]
fn a_failed_warm_up_is_left_to_the_new_owner() {
    let mut rig = Rig::new(config());
    rig.step(warm());
    rig.creation(0, Creation::Refused(other("quota")));
    rig.own(false);
    assert_eq!(rig.pass(600), NOTHING, "nobody is known to own it");
    assert_eq!(owns(&mut rig, true), ["create 0"]);
    rig.creation(0, Creation::Refused(other("quota")));
    assert_eq!(owns(&mut rig, false), NOTHING);
    rig.pass(120);
    assert!(rig.pool.is_empty(), "another runner owns it");
}

#[test]
fn a_wish_waits_until_it_is_known_who_owns_the_image() {
    let mut rig = Rig::unsynced(config());
    rig.own(false);
    assert_eq!(rig.step(warm()), NOTHING);
    assert_eq!(rig.step(Event::Synced(Vec::new())), NOTHING);
    assert_eq!(rig.pass(3600), NOTHING);
    assert_eq!(owns(&mut rig, true), ["create 0"]);

    // The other way round.
    let mut rig = Rig::unsynced(config());
    rig.own(false);
    rig.step(warm());
    owns(&mut rig, false);
    assert_eq!(owns(&mut rig, true), NOTHING, "the last word before the pods are known counts");
    assert_eq!(rig.step(Event::Synced(Vec::new())), ["create 0"]);
}

#[test]
fn a_wish_for_what_another_runner_owns_is_dropped() {
    let mut rig = Rig::unsynced(config());
    rig.own(false);
    rig.step(warm());
    owns(&mut rig, false);
    assert_eq!(rig.step(Event::Synced(Vec::new())), NOTHING);
    assert!(rig.pool.is_empty(), "for good");
    assert_eq!(owns(&mut rig, true), NOTHING, "a shard that moves starts nothing");

    owns(&mut rig, false);
    assert_eq!(rig.step(warm()), NOTHING);
    assert!(rig.pool.is_empty());
}
