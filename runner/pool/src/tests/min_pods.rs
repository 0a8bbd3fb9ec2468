//! Pods that are kept although they are unused.

use std::collections::HashMap;
use std::sync::Arc;

use super::rig::{IMAGE, NOTHING, Rig, config, seconds};
use crate::config::{Config, Limits};
use crate::event::{Action, Event, OwnedShards};
use crate::types::{Lookup, ShardKey};

fn keeping(min_pods: u32, max_pods: u32) -> Config {
    let all = Limits { max_pods, min_pods, ..config().limits };
    Config { limits: all, kept_images: Arc::new([(IMAGE.into(), IMAGE.into())].into()), ..config() }
}

/// Lets time pass while pushes and deletes succeed. Returns the other actions and the number of
/// pushes per pod.
fn live(rig: &mut Rig, span: u64) -> (Vec<String>, HashMap<u32, u64>) {
    let (mut others, mut pushes) = (Vec::new(), HashMap::new());
    for _ in 0..span / 5 {
        for line in rig.pass(5) {
            if let Some((slot, until)) = line.strip_prefix("push u").and_then(|rest| rest.split_once(" +")) {
                *pushes.entry(slot.parse().unwrap()).or_default() += 1;
                others.extend(rig.act(&format!("written {slot} expiring {until}")));
                continue;
            }
            let deleted = line.strip_prefix("delete u").map(|rest| rest[..1].to_owned());
            others.push(line);
            if let Some(slot) = deleted {
                rig.run(&format!("deleted {slot} Ok; gone {slot}"));
            }
        }
    }
    (others, pushes)
}

/// A rig with these pods, ready and kept as configured.
fn with_kept(config: Config, slots: &[u32]) -> Rig {
    let mut rig = Rig::unsynced(config);
    let pods = slots.iter().map(|&slot| rig.pod(slot)).collect();
    rig.step(Event::Synced(pods));
    for slot in slots {
        rig.run(&format!("ready {slot} .."));
    }
    rig
}

#[test]
fn the_minimum_of_the_listed_images_is_started_up_to_the_limit() {
    let unlisted = Config { kept_images: Arc::default(), ..keeping(2, 3) };
    for (config, expected) in [(keeping(0, 3), 0), (keeping(1, 3), 1), (keeping(3, 2), 2), (unlisted, 0)] {
        let mut rig = Rig::unsynced(config);
        assert_eq!(rig.act("synced").len(), expected);
        assert_eq!(rig.pool.is_empty(), expected == 0);
    }
}

#[test]
fn only_the_owner_starts_kept_pods() {
    let mut rig = Rig::unsynced(keeping(1, 1));
    rig.run("disown; synced");
    assert_eq!(rig.configure(keeping(2, 2)), NOTHING);
    rig.run("pass 3600; is empty"); // only the owner tracks the image
    rig.run("own -> create 0 + create 1");
}

#[test]
fn the_shard_key_decides_the_owner_and_is_written_into_the_pod() {
    let config =
        Config { kept_images: Arc::new([(IMAGE.into(), "registry/fn".into())].into()), ..keeping(2, 2) };
    let mut rig = Rig::unsynced(config.clone());
    rig.step(Event::Own(OwnedShards::Of(Lookup::by(|key: &ShardKey| key.as_str() == "registry/fn"))));
    rig.run("synced -> create 0 + create 1");

    // One pod exists already, with another shard key. The next pod gets the configured key.
    let mut rig = Rig::unsynced(config);
    let pod = rig.pod(0);
    let actions = rig.pool.step(Event::Synced(vec![pod]), rig.now);
    let Action::Create { shard_key, .. } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(shard_key.as_str(), "registry/fn");
}

#[test]
fn a_kept_pod_outlives_its_ttl_and_is_used_without_a_push() {
    let mut rig = with_kept(keeping(1, 1), &[0]);
    let (others, pushes) = live(&mut rig, 7200);
    assert_eq!(others, NOTHING);
    assert!((100..=120).contains(&pushes[&0]), "one a minute: {pushes:?}");
    rig.run("request 1 -> grant 1 u0");
}

#[test]
fn an_expired_kept_pod_is_pushed_and_not_deleted() {
    let mut rig = with_kept(keeping(1, 1), &[0]);
    rig.run("pass 59 ..; see 0 expiring 1 -> push u0 +1800");
    for _ in 0..30 {
        // The push is repeated, and no scan deletes the pod.
        rig.run("pushed 0 Conflict; pass 5 -> push u0 +1800");
    }

    // A pod without `reclaim_after`.
    let mut rig = with_kept(keeping(1, 1), &[]);
    rig.run("see 0 endless -> push u0 +1800 + probe u0; ready 0 ..; pushed 0 Unreachable ..");
    rig.run("pass 5 -> push u0 +1800"); // the retry
}

#[test]
fn the_same_pods_are_always_kept() {
    let mut rig = with_kept(keeping(2, 3), &[0, 1, 2]);
    let (others, pushes) = live(&mut rig, 1900);
    assert_eq!(others, ["delete u2 Expired"]);
    assert_eq!(pushes.keys().copied().max(), Some(1));
    assert_eq!(live(&mut rig, 3600).0, NOTHING);
    rig.run("counts -> 2 0 0 0");

    // Under load there are more pods. They expire afterwards.
    rig.run("request 0 ..; request 1 ..; request 2 ..; request 3 ..; request 4 ..; created 2 ..; see 2 ..");
    rig.run("ready 2 ..; served 0; served 1; served 2; served 3; served 4; counts -> 3 0 0 0");
    assert_eq!(live(&mut rig, 1950).0, ["delete u2 Expired"]);
}

#[test]
fn a_pushed_pod_stays_kept_even_with_a_short_ttl() {
    let brief = Limits { ttl: seconds(60), ..keeping(1, 2).limits };
    let mut rig = Rig::unsynced(Config { limits: brief, ..keeping(1, 2) });
    rig.run("synced 0 expiring 110, 1 expiring 125 ..; ready 0 ..; ready 1 ..");
    let (others, pushes) = live(&mut rig, 200);
    assert_eq!(others, ["delete u1 Expired"]);
    assert!(pushes.keys().eq(&[0]));
}

/// The start times of pods within an hour, in seconds. `fate` is a script that runs for each pod,
/// with slot `N`.
fn starts(config: Config, fate: &str) -> Vec<u64> {
    let mut rig = Rig::unsynced(config);
    let begin = rig.now;
    let mut lines = rig.act("synced");
    let mut starts = Vec::new();
    for _ in 0..3600 {
        for line in std::mem::take(&mut lines) {
            if let Some(slot) = line.strip_prefix("create ") {
                starts.push(rig.now.since(begin).as_secs());
                rig.run(&fate.replace('N', slot));
            }
        }
        lines = rig.pass(1);
    }
    starts
}

#[test]
fn failed_starts_are_repeated_with_growing_pauses() {
    // The pauses also grow if every pod dies as soon as it is ready.
    for fate in ["refused N quota", "created N ..; ready N ..; gone N"] {
        let one = starts(keeping(1, 1), fate);
        assert_eq!(one[..7], [0, 1, 3, 7, 15, 31, 61]);
        assert!(one.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30), "{one:?}");
        assert!(one.last().is_some_and(|&last| last > 3500));
    }
    let three = starts(keeping(3, 3), "refused N quota");
    assert_eq!(three[..3], [0, 0, 0]);
    let later = &three[3..];
    assert!(later.windows(2).all(|pair| pair[0] < pair[1]), "one at a time: {three:?}");
    assert!(later.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30), "{three:?}");
}
