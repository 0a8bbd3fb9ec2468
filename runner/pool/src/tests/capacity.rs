//! How many pods there may be of all images together, and whose place is used when there are as
//! many.

use std::sync::Arc;

use super::rig::{config, made, other, seconds};
use crate::config::{Config, Limits};
use crate::event::{Action, Creation, DeleteReason, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
use crate::model::{Manifest, Server};
use crate::pool::Pool;
use crate::types::{ImageKey, Phase, Pod, RequestId, ShardKey, Time, Uid};

/// A pool and an API server that answers at once. Pods start and end as fast.
struct World {
    pool: Pool,
    now: Time,
    server: Server,
    quota: usize,
    calls: u64,
    /// Why pods were deleted.
    deleted: Vec<(ImageKey, DeleteReason)>,
    granted: Vec<RequestId>,
    rejected: Vec<(RequestId, Rejection)>,
    /// The largest number of pods so far.
    most: usize,
    /// Pods of this image are refused as if a quota were used up.
    refused: Option<ImageKey>,
}

fn image(number: u64) -> ImageKey {
    format!("registry/f{number}:v1").into()
}

fn function(image: &ImageKey) -> &str {
    image.as_str().trim_start_matches("registry/").trim_end_matches(":v1")
}

fn room_for(capacity: u32) -> Config {
    Config { capacity: Some(capacity), ..config() }
}

impl World {
    fn new(config: Config) -> Self {
        let (server, deleted, granted, rejected) = Default::default();
        let (pool, now) = (Pool::new(config), Time::from_millis(1_000_000_000));
        let (quota, calls, most, refused) = (usize::MAX, 0, 0, None);
        let mut world = Self { pool, now, server, quota, calls, deleted, granted, rejected, most, refused };
        world.step(Event::Synced(Vec::new()));
        // For a scan interval after a list no pod counts as unused.
        world.pass(60);
        world
    }

    /// With idle pods of functions 0 and 1, in the order of their use.
    fn with_two(config: Config) -> Self {
        let mut world = Self::new(config);
        world.serve(0, 1);
        world.serve(1, 1);
        world
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.pool.step(event, self.now) {
                events.extend(self.perform(action));
            }
        }
        self.most = self.most.max(self.server.objects.len());
    }

    /// What it leads to, the last event first.
    fn perform(&mut self, action: Action) -> Vec<Event> {
        match action {
            Action::Grant { id, .. } => self.granted.push(id),
            Action::Reject { id, error } => self.rejected.push((id, error)),
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                if self.server.objects.len() >= self.quota || self.refused.as_ref() == Some(&name.image) {
                    let result = Creation::OverQuota(other("exceeded quota"));
                    return vec![Event::Created { name, result }];
                }
                let reclaim_after = Some(reclaim_after);
                let manifest = Manifest { name: name.clone(), shard_key, recipe, reclaim_after };
                let uid = self.server.create(manifest, 0).unwrap().uid;
                let pod = self.server.update(&uid, |object| object.pod.phase = Phase::Running).unwrap();
                return vec![Event::Created { name, result: Creation::Ok(uid) }, Event::Seen(pod)];
            }
            Action::Push { uid, until, place_wanted, .. } => {
                let pushed = self.server.push(&uid, until, place_wanted);
                let result = if pushed.is_some() { WriteOutcome::Ok } else { WriteOutcome::Gone };
                let answer = Event::Pushed { uid, result };
                return [answer].into_iter().chain(pushed.map(Event::Seen)).collect();
            }
            Action::Delete { uid, name, reason, .. } => {
                self.server.remove(&uid);
                self.deleted.push((name.image, reason));
                let result = WriteOutcome::Ok;
                return vec![Event::Gone(uid.clone()), Event::Deleted { uid, result }];
            }
            Action::Probe { uid, on: true, .. } => return vec![Event::Ready(uid)],
            Action::Check { uid, number, .. } => return vec![Event::Checked { uid, number, answered: true }],
            Action::Probe { .. } | Action::Disconnect { .. } => {}
        }
        Vec::new()
    }

    fn call(&mut self, function: u64) -> RequestId {
        self.call_within(function, 300)
    }

    fn call_within(&mut self, function: u64, patience: u64) -> RequestId {
        self.calls += 1;
        let (id, image) = (RequestId(self.calls), image(function));
        let deadline = self.now + seconds(patience);
        self.step(Event::Request { id, shard_key: ShardKey::from(&image), image, deadline });
        id
    }

    fn served(&mut self, id: RequestId) {
        self.step(Event::Finished { id, verdict: Verdict::Served });
    }

    /// A call that is granted within so many seconds and served at once.
    fn serve(&mut self, function: u64, within: u64) {
        let id = self.call(function);
        self.pass(within);
        assert!(self.granted.contains(&id), "{function}: {:?}", self.rejected);
        self.served(id);
    }

    fn pass(&mut self, span: u64) {
        let end = self.now + seconds(span);
        while let Some(timer) = self.pool.next_timer().filter(|&timer| timer <= end) {
            self.now = timer;
            self.step(Event::Tick);
            assert!(
                self.pool.next_timer().is_none_or(|timer| timer > self.now),
                "the timer does not advance"
            );
        }
        self.now = end;
    }

    /// The functions that have pods.
    fn there(&self) -> Vec<&str> {
        self.server.objects.keys().map(|name| function(&name.image)).collect()
    }

    fn uid(&self, function: u64) -> Uid {
        self.pod(function).uid.clone()
    }

    fn pod(&self, function: u64) -> &Pod {
        let mut pods = self.server.objects.values().map(|object| &object.pod);
        pods.find(|pod| pod.name.image == image(function)).unwrap()
    }

    /// Another runner pushes the pod of a function, or asks for its place.
    fn pushed_by_another(&mut self, function: u64, until: Time, place_wanted: Option<Time>) {
        let uid = self.uid(function);
        let pod = self.server.push(&uid, until, place_wanted).unwrap();
        self.step(Event::Seen(pod));
    }
}

#[test]
fn the_pod_unused_for_longest_makes_place() {
    let mut world = World::with_two(room_for(2));
    world.serve(0, 1);
    let waits = world.call(2);
    world.pass(2);
    assert_eq!(world.there(), ["f0", "f1"], "notice is given first");
    world.pass(2);
    assert_eq!((world.there(), world.granted.contains(&waits)), (vec!["f0", "f2"], true));
    assert_eq!(world.deleted, [(image(1), DeleteReason::Evicted)]);
}

#[test]
fn a_pod_in_use_is_waited_for() {
    let mut world = World::new(room_for(1));
    let long = world.call(0);
    let waits = world.call(1);
    world.pass(100);
    assert_eq!((world.there(), world.rejected.len()), (vec!["f0"], 0));
    world.served(long);
    world.pass(4);
    assert!(world.granted.contains(&waits));
}

#[test]
fn a_call_that_gets_no_place_in_time_hears_why() {
    let mut world = World::new(room_for(1));
    world.call(0);
    let waits = world.call_within(1, 90);
    world.pass(90);
    assert_eq!(world.rejected, [(waits, Rejection::NoRoom)]);
}

#[test]
fn functions_that_wait_together_are_served_in_their_order() {
    let mut world = World::with_two(room_for(2));
    let ids: Vec<_> = (2..8).map(|function| world.call(function)).collect();
    let mut order = Vec::new();
    for _ in 0..40 {
        world.pass(1);
        for &id in &ids {
            if world.granted.contains(&id) && !order.contains(&id) {
                order.push(id);
                world.served(id);
            }
        }
    }
    assert_eq!((order, world.most), (ids, 2));
}

#[test]
fn what_a_quota_allows_is_learned() {
    let mut world = World::new(config());
    world.quota = 2;
    world.serve(0, 1);
    world.serve(1, 1);
    world.serve(2, 4);
    assert_eq!((world.there(), world.rejected.len()), (vec!["f1", "f2"], 0));
    // It is raised, and tried again a minute later.
    world.quota = 3;
    world.pass(60);
    world.serve(3, 1);
    assert_eq!(world.there(), ["f1", "f2", "f3"]);
}

#[test]
fn a_quota_that_others_use_up_is_an_error() {
    // With other runners it is an error a second later: their pods may not have been seen yet.
    for owned in [OwnedShards::All, OwnedShards::Of(Arc::new(|_: &ShardKey| true))] {
        let mut world = World::new(config());
        world.quota = 0;
        let alone = matches!(owned, OwnedShards::All);
        world.step(Event::Own(owned));
        let id = world.call(0);
        let expected = [(id, Rejection::PodFailed { reason: other("exceeded quota") })];
        assert_eq!(world.rejected, if alone { &expected[..] } else { &[] });
        world.pass(1);
        assert_eq!(world.rejected, expected);
    }
}

#[test]
fn a_replacement_and_a_warm_up_take_nobodys_place() {
    let mut world = World::with_two(room_for(2));
    let newer = Config { recipe: made("newer", 9000), ..room_for(2) };
    world.step(Event::Configure(newer));
    world.step(Event::Warm { image: image(2), shard_key: ShardKey::from(&image(2)) });
    world.pass(600);
    assert_eq!((world.there(), world.most), (vec!["f0", "f1"], 2));
    assert_eq!(world.deleted, []);
}

#[test]
fn pods_to_be_kept_are_started_when_there_is_a_place_and_spared_last() {
    let keep = [(image(9), ShardKey::from(&image(9)))].into_iter().collect();
    let kept = Config {
        kept_images: Arc::new(keep),
        limits: Limits { min_pods: 1, ttl: seconds(120), ..config().limits },
        ..room_for(2)
    };
    let mut world = World::with_two(room_for(2));
    world.step(Event::Configure(kept));
    world.pass(60);
    assert_eq!(world.there(), ["f0", "f1"], "nobody makes place for it");
    world.pass(1900);
    assert_eq!(world.there(), ["f9"]);
    world.serve(0, 1);
    world.serve(1, 5);
    assert_eq!(world.there(), ["f1", "f9"], "f0 goes, though it was used later");
}

#[test]
fn an_owner_gives_notice_when_another_runner_wants_the_place() {
    let mut world = World::new(room_for(1));
    world.serve(0, 1);
    let until = world.pod(0).reclaim_after.unwrap();
    world.pushed_by_another(0, until, Some(world.now));
    world.pass(4);
    assert_eq!(world.deleted, [(image(0), DeleteReason::Evicted)]);
}

#[test]
fn without_a_pod_of_its_own_a_runner_asks_for_anothers() {
    let mut world = World::new(room_for(1));
    world.serve(0, 1);
    world.step(Event::Own(OwnedShards::None));
    let waits = world.call(1);
    world.pass(4);
    assert!(world.pod(0).place_wanted.is_some());
    assert_eq!(world.deleted, [], "it is for its owner to delete");
    let uid = world.uid(0);
    world.server.remove(&uid);
    world.step(Event::Gone(uid));
    assert!(world.granted.contains(&waits));
}

#[test]
fn a_pod_that_another_runner_uses_is_spared() {
    let mut world = World::with_two(room_for(2));
    let waits = world.call(2);
    world.pass(1);
    world.pushed_by_another(0, world.now + seconds(1800), None);
    world.pass(4);
    assert_eq!((world.there(), world.granted.contains(&waits)), (vec!["f0", "f2"], true));
}

/// A quota of memory, such as three of the small pods and none of the large one.
#[test]
fn a_pod_too_large_for_a_quota_takes_few_places_and_fails_its_call() {
    let mut world = World::new(config());
    for function in 0..10 {
        world.serve(function, 1);
    }
    world.refused = Some(image(99));
    let large = world.call(99);
    world.pass(60);
    let reason = other("exceeded quota");
    assert_eq!(world.rejected, [(large, Rejection::PodFailed { reason })]);
    assert!(world.deleted.len() <= 4, "{:?}", world.deleted);
    world.serve(100, 1);
}
