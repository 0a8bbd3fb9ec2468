//! Warm-ups: one pod, once, started by the owner alone.

use std::sync::Arc;

use super::rig::{IMAGE, NOTHING, Rig, config, other};
use crate::event::{Creation, Event, Ownership};
use crate::types::ShardKey;

fn warm() -> Event {
    Event::Warm { image: IMAGE.into(), shard_key: IMAGE.into() }
}

fn owns(rig: &mut Rig, owned: bool) -> Vec<String> {
    rig.step(Event::Own(Ownership::Of(Arc::new(move |_: &ShardKey| owned))))
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

    assert_eq!(rig.step(warm()), ["create 0"]);
    assert_eq!(rig.creation(0, Creation::Refused(other("quota"))), NOTHING);
    rig.pass(120);
    assert!(rig.pool.is_empty(), "and given up when it fails");
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

#[test]
fn a_wish_of_an_unknown_owner_leaves_the_pods_alone() {
    let mut rig = Rig::unsynced(config());
    rig.own(false);
    rig.step(warm());
    let pod = rig.pod(0);
    assert_eq!(rig.step(Event::Synced(vec![pod])), NOTHING);
    assert_eq!(owns(&mut rig, true), ["probe u0"], "it is content with the one that is there");
    assert_eq!(rig.ready(0), NOTHING);
    assert_eq!(rig.gone(0), NOTHING);
}
