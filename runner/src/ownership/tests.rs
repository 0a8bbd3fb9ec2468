//! Runners and routers have to agree who owns a function, or its pods are collected twice or never.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use porch_fn_discovery::{COALESCE, COOLDOWN, HostPort};
use porch_fn_image::shard_key;
use tokio::time::sleep;
use tracing::{Metadata, span};

use super::*;
use crate::metrics::tests::metrics;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const A: &str = "10.0.0.1:9445";
const B: &str = "10.0.0.2:9445";
const C: &str = "[2001:db8::3]:9445";

/// A runner, and the discovery that it follows.
struct Runner {
    snapshots: watch::Sender<Snapshot>,
    ring: watch::Receiver<Arc<[Identity]>>,
    receiver: watch::Receiver<OwnedShards>,
    /// As the pool has it.
    owned: OwnedShards,
    drain: drain::Signal,
}

impl Runner {
    /// Before discovery's first answer.
    async fn new(own: &str) -> Self {
        let ownership = Ownership::new(own.to_owned(), metrics().0);
        let (ring, receiver) = (ownership.ring(), ownership.owned());
        let (snapshots, answers) = watch::channel(Snapshot::default());
        let (drain, watch) = drain::channel();
        let mut runner = Self { snapshots, ring, receiver, owned: OwnedShards::None, drain };
        tokio::spawn(ownership.run(answers, watch));
        runner.after(Duration::ZERO).await;
        assert_eq!(runner.changes(), 0, "there was no answer yet");
        runner
    }

    /// Discovery lists `endpoints`.
    async fn answer(&self, endpoints: &[&str]) {
        self.snapshots.send_modify(|snapshot| {
            snapshot.generation += 1;
            snapshot.endpoints = endpoints.iter().map(ToString::to_string).collect();
        });
        self.after(Duration::ZERO).await;
    }

    /// Lets time pass, and the task do what is due.
    async fn after(&self, time: Duration) {
        // Time that is paused goes on only when every task waits.
        sleep(time + Duration::from_millis(2)).await;
    }

    /// How often it owned something else since the last time: once or not at all.
    fn changes(&mut self) -> usize {
        let count = usize::from(self.receiver.has_changed().unwrap());
        self.owned = self.receiver.borrow_and_update().clone();
        count
    }

    /// The same, and the runners on the ring.
    fn changes_and_members(&mut self) -> (usize, usize) {
        (self.changes(), self.ring.borrow().len())
    }

    fn owns(&self, key: &str) -> bool {
        self.owned.owns(&ShardKey::from(key))
    }
}

/// A thousand images as callers spell them, with the tag field that some send.
fn requests() -> impl Iterator<Item = (String, Option<&'static str>)> {
    (0..1000).map(|n| match n % 5 {
        0 => (format!("function-{n}"), None),
        1 => (format!("function-{n}:v0.{n}"), None),
        2 => (format!("registry.example:5000/team/Function-{n}"), None),
        3 => (format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v1"), Some("~1.2")),
        _ => (format!("docker.io/f-{n}@sha256:{}", "0123456789abcdef".repeat(4)), Some("")),
    })
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_where_the_router_goes_first() {
    let names = [A, B, C];
    let mut runners = Vec::new();
    for name in names {
        let mut runner = Runner::new(name).await;
        runner.answer(&[B, C, A]).await;
        assert_eq!(runner.changes(), 1);
        runners.push(runner);
    }
    // As the router has it: ring, preference and its first entry.
    let ring = Ring::new(names.map(Identity::from)).unwrap();
    let mut shares = [0; 3];
    for (image, tag) in requests() {
        let key = shard_key(&image, tag, PREFIX);
        let first = ring.preference(&key)[0];
        let first = ring.nodes()[usize::from(first)].as_str();
        let owners: Vec<_> = (0..3).filter(|&index| runners[index].owns(&key)).collect();
        assert_eq!(owners.iter().map(|&index| names[index]).collect::<Vec<_>>(), [first], "{image}");
        shares[owners[0]] += 1;
    }
    assert!(shares.iter().all(|&share| share > 200), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn two_runners_share_all_keys_whatever_changes() {
    let mut a = Runner::new(A).await;
    let mut b = Runner::new(B).await;
    let rounds: [(&[&str], [bool; 2]); 4] =
        [(&[A, B], [true, true]), (&[B], [false, true]), (&[], [false, false]), (&[A, B], [true, true])];
    for (endpoints, present) in rounds {
        for runner in [&mut a, &mut b] {
            runner.answer(endpoints).await;
            runner.after(COALESCE + COOLDOWN).await;
            runner.changes();
        }
        for (image, _) in requests() {
            let owners = [&a, &b].map(|runner| runner.owns(&image));
            assert_eq!(
                owners.iter().filter(|&&owns| owns).count(),
                usize::from(present != [false; 2]),
                "{image}"
            );
            assert!((0..2).all(|index| present[index] || !owners[index]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_is_published_once() {
    let mut runner = Runner::new(A).await;
    runner.answer(&[A, B]).await;
    assert_eq!(runner.changes_and_members(), (1, 2));
    runner.answer(&[B, A]).await;
    runner.after(Duration::from_hours(1)).await;
    assert_eq!(runner.changes(), 0, "nothing changed");

    // Arrivals are gathered.
    runner.answer(&[A, B, C]).await;
    runner.after(COALESCE / 2).await;
    runner.answer(&[A, B, C, "10.0.0.4:9445"]).await;
    assert_eq!(runner.changes_and_members(), (0, 2));
    runner.after(COALESCE / 2).await;
    assert_eq!(runner.changes_and_members(), (1, 4));

    // A runner that leaves leaves at once, and cools down when it returns.
    runner.answer(&[A, C, "10.0.0.4:9445"]).await;
    assert_eq!(runner.changes_and_members(), (1, 3));
    runner.answer(&[A, B, C, "10.0.0.4:9445"]).await;
    runner.after(COOLDOWN.saturating_sub(COALESCE)).await;
    assert_eq!(runner.changes(), 0);
    runner.after(2 * COALESCE).await;
    assert_eq!(runner.changes_and_members(), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_not_listed_owns_nothing() {
    let mut runner = Runner::new(A).await;
    for (endpoints, members, owns) in [
        (&[B, C][..], 2, 0),
        (&[], 0, 0),
        // The first ones join at once.
        (&[A], 1, 1000),
        // It cools down, but nobody else is left: the router calls it, so it is the owner.
        (&[], 0, 0),
        (&[A], 1, 1000),
        (&[B], 1, 0),
    ] {
        runner.answer(endpoints).await;
        runner.changes();
        assert_eq!(runner.ring.borrow().len(), members, "{endpoints:?}");
        assert_eq!(requests().filter(|(image, _)| runner.owns(image)).count(), owns, "{endpoints:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn its_address_is_spelled_as_discovery_does() {
    for (given, spelled) in
        [("10.0.0.1", A), ("10.0.0.1:9445", A), ("[2001:DB8:0::3]", C), ("2001:db8::3", C)]
    {
        let mut runner = Runner::new(&HostPort::parse(given, 9445).unwrap().to_string()).await;
        runner.answer(&[spelled]).await;
        runner.changes();
        assert!(runner.owns("any"), "{given}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_rollout_it_owns_its_share_throughout_and_changes_are_few() {
    let mut runner = Runner::new(A).await;
    let old: Vec<_> = (0..4).map(|pod| format!("10.0.1.{pod}:9445")).collect();
    let new: Vec<_> = (0..4).map(|pod| format!("10.0.2.{pod}:9445")).collect();
    let mut set: Vec<&str> = old.iter().map(String::as_str).chain([A]).collect();
    runner.answer(&set).await;
    assert_eq!(runner.changes(), 1);
    // All new ones come, and when they are ready the old ones go.
    for pod in &new {
        set.push(pod);
        runner.answer(&set).await;
        runner.after(COALESCE / 5).await;
    }
    assert_eq!(runner.changes(), 0);
    runner.after(COALESCE).await;
    assert_eq!(runner.changes_and_members(), (1, 9));
    runner.answer(&new.iter().map(String::as_str).chain([A]).collect::<Vec<_>>()).await;
    assert_eq!(runner.changes_and_members(), (1, 5));
    let owned = requests().filter(|(image, _)| runner.owns(image)).count();
    assert!((100..350).contains(&owned), "{owned}");
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let warned = *event.metadata().level() == tracing::Level::WARN;
        self.0.fetch_add(usize::from(warned), Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_starts_warns_only_when_it_stays_unlisted() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let warned = || warnings.0.load(Ordering::Relaxed);

    let started = Runner::new(A).await;
    started.answer(&[B]).await;
    started.after(UNLISTED_WITHIN / 2).await;
    started.answer(&[A, B]).await;
    started.after(2 * UNLISTED_WITHIN).await;
    assert_eq!(warned(), 0, "it was listed once it was ready");

    let unlisted = Runner::new(A).await;
    unlisted.answer(&[B]).await;
    unlisted.after(UNLISTED_WITHIN / 2).await;
    unlisted.answer(&[B, C]).await;
    assert_eq!(warned(), 0);
    unlisted.after(UNLISTED_WITHIN).await;
    assert_eq!(warned(), 1);
    unlisted.after(5 * UNLISTED_WITHIN).await;
    assert_eq!(warned(), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_drains_leaves_its_peers_without_a_warning() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    for signal_first in [true, false] {
        let mut runner = Runner::new(A).await;
        runner.answer(&[A, B]).await;
        if signal_first {
            runner.drain.drain();
            runner.after(Duration::ZERO).await;
        }
        runner.answer(&[B]).await;
        // Readiness goes some time before the signal.
        runner.after(UNLISTED_WITHIN / 2).await;
        runner.drain.drain();
        runner.after(UNLISTED_WITHIN * 2).await;
        assert_eq!(**runner.ring.borrow(), [Identity::from(B)], "peers are still followed");
        runner.drain.drained().await;
    }
    assert_eq!(warnings.0.load(Ordering::Relaxed), 0);
}
