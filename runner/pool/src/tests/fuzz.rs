//! Any event in any order, from a clock that may go back: nothing panics, no call is answered
//! twice, timers advance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::rig::{limits, name, other, uid};
use crate::config::{Config, Limits};
use crate::event::{Action, Creation, Event, OwnedShards, Verdict, WriteOutcome};
use crate::model::Rng;
use crate::pool::Pool;
use crate::types::{ImageContent, Phase, Pod, PodRecipe, RequestId, Time};

const OUTCOMES: &[WriteOutcome] = {
    use WriteOutcome::{Conflict, Gone, Ok, Unknown, Unreachable};
    &[Ok, Conflict, Gone, Unknown, Unreachable]
};

fn pod(rng: &mut Rng, now: Time) -> Pod {
    let slot = rng.between(0, 3) as u32;
    let time = |rng: &mut Rng| rng.chance(50).then(|| now + Duration::from_millis(rng.between(0, 99_999)));
    Pod {
        name: name(slot),
        uid: uid(rng.between(0, 7) as u32),
        resource_version: rng.between(0, 5).to_string().into(),
        shard_key: "key".into(),
        terminating_since: time(rng),
        phase: match rng.between(0, 3) {
            0 => Phase::Pending(Some(other("unschedulable"))),
            1 => Phase::Failed(other("exit code 1")),
            _ => Phase::Running,
        },
        recipe: PodRecipe {
            content: rng
                .chance(50)
                .then(|| ImageContent { digest: rng.pick(&["one", "two"]).into(), resolved: time(rng) }),
            ..PodRecipe::of(rng.pick(&["new", "old"]), time(rng))
        },
        reclaim_after: time(rng),
        place_wanted: time(rng),
    }
}

fn event(rng: &mut Rng, now: Time, next: &mut u64) -> Event {
    let some_uid = uid(rng.between(0, 7) as u32);
    let id = RequestId(rng.between(0, *next));
    match rng.between(0, 20) {
        20 => Event::Warm { image: name(0).image, shard_key: "key".into() },
        0..=4 => {
            *next += 1;
            let deadline = now + Duration::from_millis(rng.between(0, 300_000));
            Event::Request { id: RequestId(*next), image: name(0).image, shard_key: "key".into(), deadline }
        }
        5 => Event::Cancel(id),
        6 => Event::Finished {
            id,
            verdict: match rng.between(0, 5) {
                0 => Verdict::Served,
                1 => Verdict::Broken,
                2 => Verdict::Silent,
                3 => Verdict::Full,
                package => Verdict::Late { package },
            },
        },
        7 | 8 => Event::Seen(pod(rng, now)),
        9 => Event::Gone(some_uid),
        10 => Event::Synced((0..rng.between(0, 3)).map(|_| pod(rng, now)).collect()),
        11 => Event::WatchLost,
        12 => {
            let result = match rng.between(0, 5) {
                0 => Creation::Exists,
                1 => Creation::Refused(other("policy")),
                2 => Creation::OverQuota(other("quota")),
                3 => Creation::Unknown,
                4 => Creation::Unreachable,
                _ => Creation::Ok(some_uid),
            };
            Event::Created { name: name(rng.between(0, 3) as u32), result }
        }
        13 => Event::Deleted { uid: some_uid, result: rng.pick(OUTCOMES) },
        14 => Event::Pushed { uid: some_uid, result: rng.pick(OUTCOMES) },
        15 => Event::Ready(some_uid),
        16 => Event::Checked { uid: some_uid, number: rng.between(0, 3), answered: rng.chance(50) },
        17 => Event::Failed { uid: some_uid, reason: other("out of memory") },
        18 if rng.chance(50) => Event::Own(if rng.chance(50) { OwnedShards::All } else { OwnedShards::None }),
        18 => {
            let limit = |rng: &mut Rng| rng.between(0, 3) as u32;
            let span = |rng: &mut Rng| Duration::from_millis(rng.pick(&[0, 1, 60_000, 60_000, u64::MAX]));
            let kept = rng.chance(50).then_some((name(0).image, "key".into()));
            Event::Configure(Config {
                limits: Limits {
                    max_pods: limit(rng),
                    min_pods: limit(rng),
                    waitlist: limit(rng),
                    per_pod: limit(rng),
                    queue: limit(rng),
                    ttl: span(rng),
                },
                kept_images: Arc::new(kept.into_iter().collect()),
                capacity: rng.chance(50).then(|| limit(rng)),
                scan_interval: span(rng),
                ready_timeout: span(rng),
                pending_timeout: span(rng),
                skew: rng.pick(&[Duration::ZERO, Duration::from_secs(30), Duration::MAX]),
                replace_after: span(rng),
                stuck_after: span(rng),
                ..limits(1, 1)
            })
        }
        _ => Event::Tick,
    }
}

#[test]
fn anything_may_happen() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut pool = Pool::new(limits(2, 1));
        let mut now = Time::from_millis(rng.pick(&[0, 1_000_000_000, u64::MAX - 1_000_000]));
        let (mut next, mut answered) = (0, BTreeSet::new());
        for _ in 0..200 {
            let later = now.as_millis().saturating_add(rng.pick(&[0, 10, 1000, 60_000]));
            now = if rng.chance(2) { Time::from_millis(later / 2) } else { Time::from_millis(later) };
            let event = event(&mut rng, now, &mut next);
            for action in pool.step(event, now) {
                if let Action::Grant { id, .. } | Action::Reject { id, .. } = action {
                    assert!(answered.insert(id), "seed {seed}: {id:?} is answered twice");
                }
            }
        }
    }
}
