//! Runs random steps with a clock that may go back. No step panics, and no call is answered twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::rig::{Rig, limits, name};
use crate::config::{Config, Limits};
use crate::model::Rng;
use crate::types::Time;

/// The steps that are drawn. `#` stands for a call's number, and `$` for a slot's number.
const STEPS: &str = "cancel #; served #; broken #; silent #; full #; late # 1; late # 2; see $; see $ running; \
     see $ outdated expiring 9; see $ wanted 0; see $ running wanted 9; see $ terminating 5; see $ endless; \
     see $ failed exit code 1; see $ past u1; gone $; synced; synced $, $ running; watch lost; created $; \
     creation $ Ok; creation $ Exists; creation $ Unreachable; creation $ OverQuota; refused $ policy; \
     deleted $ Ok; deleted $ Conflict; deleted $ Gone; deleted $ Unknown; deleted $ Unreachable; written $; \
     pushed $ Ok; pushed $ Conflict; pushed $ Gone; pushed $ Unknown; pushed $ Unreachable; ready $; \
     checked $ 1 true; checked $ 1 false; checked $ 2 false; failed $ out of memory; own; own shard; own other; \
     disown; limit $; warm; tick; tick; tick";

fn draw_config(rng: &mut Rng) -> Config {
    let mut limit = || rng.between(0, 3) as u32;
    let (max_pods, min_pods, waitlist, per_pod, queue) = (limit(), limit(), limit(), limit(), limit());
    let capacity = Some(limit()).filter(|pods| *pods < 2);
    let mut span = || Duration::from_millis(rng.pick(&[0, 1, 60_000, 60_000, u64::MAX]));
    Config {
        limits: Limits { max_pods, min_pods, waitlist, per_pod, queue, ttl: span() },
        scan_interval: span(),
        ready_timeout: span(),
        pending_timeout: span(),
        skew: span(),
        kept_images: Arc::new((0..rng.between(0, 1)).map(|_| (name(0).image, "key".into())).collect()),
        capacity,
        ..limits(1, 1)
    }
}

#[test]
fn no_order_of_events_panics_or_answers_twice() {
    let steps: Vec<_> = STEPS.split("; ").collect();
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::unsynced(limits(2, 1));
        rig.now = Time::from_millis(rng.pick(&[0, 1_000_000_000, u64::MAX - 1_000_000]));
        rig.pods_answer = false;
        let (mut calls, mut answered) = (0, BTreeSet::new());
        for _ in 0..200 {
            let later = rig.now.as_millis().saturating_add(rng.pick(&[0, 10, 1000, 60_000]));
            rig.now = Time::from_millis(if rng.chance(2) { later / 2 } else { later });
            let (call, slot) = (rng.between(0, calls).to_string(), rng.between(0, 3).to_string());
            let lines = match rng.between(0, 99) {
                0..20 => {
                    calls += 1;
                    rig.act(&format!("request {calls} within {}", rng.between(0, 300)))
                }
                20..25 => rig.configure(draw_config(&mut rng)),
                _ => rig.act(&rng.pick(&steps).replace('#', &call).replace('$', &slot)),
            };
            for line in lines.iter().filter(|line| line.starts_with("grant") || line.starts_with("reject")) {
                let id = line.split(' ').nth(1).unwrap().to_owned();
                assert!(answered.insert(id), "seed {seed}: {line} is a second answer");
            }
        }
    }
}
