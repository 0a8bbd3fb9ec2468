//! Pods that are kept although nobody asks for them.

use std::collections::HashMap;
use std::sync::Arc;

use super::rig::{IMAGE, NOTHING, Rig, config, made, other, seconds};
use crate::config::{Config, Limits, Override};
use crate::event::{Action, Creation, Event, OwnedShards, WriteOutcome};
use crate::types::{Pod, ShardKey, Time};

fn keeping(min_pods: u32, max_pods: u32) -> Config {
    let all = Limits { max_pods, min_pods, ..config().limits };
    Config { limits: all, kept_images: Arc::new([(IMAGE.into(), IMAGE.into())].into()), ..config() }
}

fn configure(rig: &mut Rig, config: Config) -> Vec<String> {
    rig.config = config.clone();
    rig.step(Event::Configure(config))
}

/// Lets time pass while pushes and deletes succeed; what else was asked for, and how many pushes
/// there were for each pod.
fn live(rig: &mut Rig, span: u64) -> (Vec<String>, HashMap<u32, u64>) {
    live_as(rig, span, |pod| pod)
}

/// The same with pods that `dress` makes special.
fn live_as(rig: &mut Rig, span: u64, dress: impl Fn(Pod) -> Pod) -> (Vec<String>, HashMap<u32, u64>) {
    let (mut others, mut pushes) = (Vec::new(), HashMap::new());
    for _ in 0..span / 5 {
        for line in rig.pass(5) {
            let Some((slot, until)) = line.strip_prefix("push u").and_then(|rest| rest.split_once(" +"))
            else {
                let deleted = line.strip_prefix("delete u").map(|rest| rest[..1].parse().unwrap());
                others.push(line);
                if let Some(slot) = deleted {
                    others.extend(rig.deleted(slot, WriteOutcome::Ok));
                    others.extend(rig.gone(slot));
                }
                continue;
            };
            let (slot, until) = (slot.parse().unwrap(), until.parse::<f64>().unwrap());
            let pod = Pod { reclaim_after: Some(rig.now + seconds(until as u64)), ..rig.pod(slot) };
            *pushes.entry(slot).or_default() += 1;
            others.extend(rig.written(dress(pod)));
        }
    }
    (others, pushes)
}

/// The answer to a create, and the watch.
fn created(rig: &mut Rig, slot: u32) {
    rig.created(slot);
    rig.see(slot);
}

/// With these pods, ready and kept as far as configured.
fn with_kept(config: Config, slots: &[u32]) -> Rig {
    let mut rig = Rig::unsynced(config);
    let pods = slots.iter().map(|&slot| rig.pod(slot)).collect();
    rig.step(Event::Synced(pods));
    for &slot in slots {
        rig.ready(slot);
    }
    rig
}

#[test]
fn nothing_is_started_before_the_pods_are_known() {
    let mut rig = Rig::unsynced(keeping(2, 3));
    assert_eq!(rig.own(true), NOTHING);
    assert_eq!(rig.pass(600), NOTHING);
    assert_eq!(rig.step(Event::Synced(Vec::new())), ["create 0", "create 1"]);
    assert_eq!(rig.created(0), ["probe u0"]);
    assert_eq!(rig.created(1), ["probe u1"]);
    rig.ready(0);
    rig.ready(1);
    assert_eq!(rig.pass(10), NOTHING, "and no more than that");

    let mut rig = Rig::unsynced(keeping(2, 3));
    let pod = rig.pod(1);
    assert_eq!(rig.step(Event::Synced(vec![pod])), ["create 0", "probe u1"], "what is there counts");
}

#[test]
fn how_many_is_said_for_all_or_for_one() {
    let own = |min_pods, max_pods| Override {
        limits: Limits { max_pods, min_pods, ..Limits::default() },
        recipe: None,
    };
    let cases = [
        (keeping(0, 3), Override::default(), 0),
        (keeping(0, 3), own(2, 0), 2),
        (keeping(1, 3), own(2, 0), 2),
        (keeping(1, 3), Override::default(), 1),
        (keeping(3, 2), Override::default(), 2),
        (keeping(3, 3), own(0, 1), 1),
        (Config { kept_images: Arc::default(), ..keeping(2, 3) }, own(2, 0), 0),
    ];
    for (all, one, expected) in cases {
        let overrides = super::rig::overrides(HashMap::from([(IMAGE.into(), one)]));
        let mut rig = Rig::unsynced(Config { overrides, ..all });
        assert_eq!(rig.step(Event::Synced(Vec::new())).len(), expected);
        assert_eq!(rig.pool.is_empty(), expected == 0);
    }
}

#[test]
fn the_owner_alone_starts_pods() {
    let mut rig = Rig::unsynced(keeping(1, 1));
    rig.own(false);
    assert_eq!(rig.step(Event::Synced(Vec::new())), NOTHING);
    assert_eq!(configure(&mut rig, keeping(2, 2)), NOTHING);
    assert_eq!(rig.pass(3600), NOTHING);
    assert!(rig.pool.is_empty(), "and the others need not know the image");
    assert_eq!(rig.own(true), ["create 0", "create 1"]);
}

#[test]
fn the_key_decides_who_owns_and_is_written_into_the_pod() {
    let config =
        Config { kept_images: Arc::new([(IMAGE.into(), "registry/fn".into())].into()), ..keeping(2, 2) };
    let mut rig = Rig::unsynced(config.clone());
    rig.step(Event::Own(OwnedShards::Of(Arc::new(|key: &ShardKey| key.as_str() == "registry/fn"))));
    assert_eq!(rig.step(Event::Synced(Vec::new())), ["create 0", "create 1"]);

    // One is there already, under another key.
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
    assert_eq!(rig.request(1), ["grant 1 u0"]);
}

#[test]
fn a_kept_pod_that_has_lapsed_already_is_pushed_and_not_deleted() {
    let mut rig = with_kept(keeping(1, 1), &[0]);
    rig.pass(59);
    assert_eq!(rig.see_lapsing(0, 1), ["push u0 +1800"]);
    for _ in 0..30 {
        rig.pushed(0, WriteOutcome::Conflict);
        assert_eq!(rig.pass(5), ["push u0 +1800"], "as often as it takes, whatever scan comes in between");
    }

    // A pod whose end was never said.
    let mut rig = with_kept(keeping(1, 1), &[]);
    assert_eq!(rig.see_as(0, |pod| Pod { reclaim_after: None, ..pod }), ["push u0 +1800", "probe u0"]);
    rig.ready(0);
    rig.pushed(0, WriteOutcome::Unreachable);
    assert_eq!(rig.pass(5), ["push u0 +1800"], "again");
}

#[test]
fn what_is_no_longer_kept_lapses() {
    for lowered in [config(), keeping(0, 1), Config { kept_images: Arc::default(), ..keeping(1, 1) }] {
        let mut rig = with_kept(keeping(1, 1), &[0]);
        live(&mut rig, 3600);
        assert_eq!(configure(&mut rig, lowered), NOTHING);
        assert_eq!(rig.pass(1700), NOTHING);
        assert_eq!(rig.pass(200), ["delete u0 Expired"]);
        rig.deleted(0, WriteOutcome::Ok);
        assert_eq!(rig.gone(0), NOTHING);
        assert!(rig.pool.is_empty());
    }
}

#[test]
fn of_more_pods_always_the_same_are_kept() {
    let mut rig = with_kept(keeping(2, 3), &[0, 1, 2]);
    let (others, pushes) = live(&mut rig, 1900);
    assert_eq!(others, ["delete u2 Expired"]);
    assert_eq!(pushes.keys().copied().max(), Some(1));
    assert_eq!(live(&mut rig, 3600).0, NOTHING);
    assert_eq!(rig.counts(), [2, 0, 0, 0]);

    // Under load there are more, and after it as many as before.
    for id in 0..5 {
        rig.request(id);
    }
    created(&mut rig, 2);
    rig.ready(2);
    for id in 0..5 {
        rig.served(id);
    }
    assert_eq!(rig.counts(), [3, 0, 0, 0]);
    assert_eq!(live(&mut rig, 1950).0, ["delete u2 Expired"]);
}

#[test]
fn what_is_pushed_stays_the_one_to_be_kept_however_short_its_life() {
    let brief = Limits { ttl: seconds(60), ..keeping(1, 2).limits };
    let mut rig = Rig::unsynced(Config { limits: brief, ..keeping(1, 2) });
    let pods = vec![rig.lapsing(0, 110), rig.lapsing(1, 125)];
    rig.step(Event::Synced(pods));
    rig.ready(0);
    rig.ready(1);
    let (others, pushes) = live(&mut rig, 200);
    assert_eq!(others, ["delete u1 Expired"]);
    assert!(pushes.keys().eq(&[0]));
}

/// When pods are started in the course of an hour, in seconds, if this is what becomes of each.
fn starts(config: Config, fate: impl Fn(&mut Rig, u32)) -> Vec<u64> {
    let mut rig = Rig::unsynced(config);
    let begin = rig.now;
    let mut lines = rig.step(Event::Synced(Vec::new()));
    let mut starts = Vec::new();
    for _ in 0..3600 {
        for line in std::mem::take(&mut lines) {
            if let Some(slot) = line.strip_prefix("create ") {
                starts.push(rig.now.since(begin).as_secs());
                fate(&mut rig, slot.parse().unwrap());
            }
        }
        lines = rig.pass(1);
    }
    starts
}

#[test]
fn starts_that_fail_are_tried_again_for_ever_and_ever_more_slowly() {
    let refused = |rig: &mut Rig, slot| {
        rig.creation(slot, Creation::Refused(other("quota")));
    };
    let starts_of = |min_pods| starts(keeping(min_pods, 3), refused);
    let one = starts_of(1);
    assert_eq!(one[..7], [0, 1, 3, 7, 15, 31, 61]);
    assert!(one.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30), "{one:?}");
    assert!(one.last().is_some_and(|&last| last > 3500));

    let three = starts_of(3);
    assert_eq!(three[..3], [0, 0, 0]);
    let later = &three[3..];
    assert!(later.windows(2).all(|pair| pair[0] < pair[1]), "one at a time: {three:?}");
    assert!(later.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30), "{three:?}");
}

#[test]
fn pods_that_die_as_soon_as_they_are_ready_are_not_started_in_a_loop() {
    let starts = starts(keeping(1, 1), |rig, slot| {
        rig.created(slot);
        rig.ready(slot);
        assert_eq!(rig.gone(slot), NOTHING);
    });
    assert_eq!(starts[..7], [0, 1, 3, 7, 15, 31, 61]);
    assert!(
        starts.len() > 100 && starts.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30),
        "{starts:?}"
    );
}

#[test]
fn when_a_shard_moves_the_new_owner_keeps_the_pods_that_are_there() {
    let mut old = with_kept(keeping(2, 2), &[0, 1]);
    live(&mut old, 600);
    assert_eq!(old.own(false), NOTHING);
    assert_eq!(old.pass(3600), NOTHING, "it neither pushes nor starts any more");
    old.gone(0);
    assert_eq!(old.pass(600), NOTHING);
    old.gone(1);
    assert!(old.pool.is_empty());

    let mut new = Rig::unsynced(keeping(2, 2));
    new.own(false);
    let pods = vec![new.lapsing(0, 1770), new.lapsing(1, 1750)];
    assert_eq!(new.step(Event::Synced(pods)), NOTHING);
    assert_eq!(new.own(true), ["probe u0", "probe u1"]);
    new.ready(0);
    new.ready(1);
    let (others, pushes) = live(&mut new, 7200);
    assert_eq!(others, NOTHING);
    assert!(pushes[&0] > 100 && pushes[&1] > 100);
}

#[test]
fn a_kept_pod_of_another_version_is_replaced_by_one_that_is_kept() {
    // The second is short-lived: in use or not, it never looks far from its lapse.
    let brief = Config { limits: Limits { ttl: seconds(60), ..keeping(1, 1).limits }, ..keeping(1, 1) };
    for config in [keeping(1, 1), brief] {
        let old = |pod: Pod| match pod.name.slot {
            0 => Pod { recipe: made("old", 4000), ..pod },
            _ => pod,
        };
        let mut rig = Rig::unsynced(config);
        let pod = Pod { reclaim_after: Some(rig.now + seconds(120)), ..rig.pod(0) };
        rig.step(Event::Synced(vec![old(pod)]));
        rig.ready(0);
        let mut others = Vec::new();
        while others.is_empty() {
            others = live_as(&mut rig, 5, old).0;
            assert!(rig.now < Time::from_millis(1_000_600_000), "never replaced");
        }
        assert_eq!(others, ["create 1"]);
        created(&mut rig, 1);
        assert_eq!(live_as(&mut rig, 30, old).0, NOTHING, "the old one stays until the new one is ready");
        let lines = rig.ready(1);
        assert!(lines.contains(&"push u0 +60".to_owned()), "notice: {lines:?}");
        let noticed = old(Pod { reclaim_after: Some(rig.now + seconds(60)), ..rig.pod(0) });
        rig.written(noticed);
        let (others, pushes) = live_as(&mut rig, 150, old);
        assert_eq!(others, ["delete u0 Replaced"]);
        assert!(!pushes.contains_key(&0), "{pushes:?}");
        assert_eq!(live(&mut rig, 3600).0, NOTHING, "the new one is kept");
        assert_eq!(rig.counts(), [1, 0, 0, 0]);
    }
}
