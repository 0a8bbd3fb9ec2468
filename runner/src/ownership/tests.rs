//! Runners must agree on the owner of a function. Otherwise two of them, or none, would delete its
//! expired pods.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use porch_fn_discovery::{COALESCE, COOLDOWN};
use porch_fn_image::shard_key;
use tokio::time::sleep;

use super::*;
use crate::metrics::tests::metrics;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const A: &str = "10.0.0.1:9445";
const B: &str = "10.0.0.2:9445";
const C: &str = "[2001:db8::3]:9445";

/// A runner, and the discovery that it follows.
struct Runner {
    snapshots: watch::Sender<Snapshot>,
    ring: watch::Receiver<Arc<[Arc<str>]>>,
    receiver: watch::Receiver<OwnedShards>,
    /// The ownership that the pool last received.
    owned: OwnedShards,
    drain: drain::Signal,
}

impl Runner {
    /// A runner before discovery's first answer.
    async fn new(own: &str) -> Self {
        let ownership = Ownership::new(own.to_owned(), metrics().0);
        let (ring, receiver) = (ownership.ring.subscribe(), ownership.owned.subscribe());
        let (snapshots, answers) = watch::channel(Snapshot::default());
        let (drain, watch) = drain::channel();
        let mut runner = Self { snapshots, ring, receiver, owned: OwnedShards::None, drain };
        tokio::spawn(ownership.run(answers, watch));
        runner.advance(Duration::ZERO).await;
        assert_eq!(runner.take_changes(), 0, "there was no answer yet");
        runner
    }

    /// Makes discovery list `endpoints`.
    async fn list(&self, endpoints: &[&str]) {
        self.snapshots.send_modify(|snapshot| {
            snapshot.is_answered = true;
            snapshot.endpoints = endpoints.iter().map(ToString::to_string).collect();
        });
        self.advance(Duration::ZERO).await;
    }

    /// Lets time pass, and lets the task process what is due.
    async fn advance(&self, time: Duration) {
        // Paused time advances only when every task waits.
        sleep(time + Duration::from_millis(2)).await;
    }

    /// 1 if ownership changed since the last check, else 0.
    fn take_changes(&mut self) -> usize {
        let count = usize::from(self.receiver.has_changed().unwrap());
        self.owned = self.receiver.borrow_and_update().clone();
        count
    }

    fn owns(&self, key: &str) -> bool {
        self.owned.owns(&ShardKey::from(key))
    }
}

/// A thousand images as callers spell them, each with its `tag` field, which may be empty.
fn requests() -> impl Iterator<Item = (String, &'static str)> {
    (0..1000).map(|n| match n % 5 {
        0 => (format!("function-{n}"), ""),
        1 => (format!("function-{n}:v0.{n}"), ""),
        2 => (format!("registry.example:5000/team/Function-{n}"), ""),
        3 => (format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v1"), "~1.2"),
        _ => (format!("docker.io/f-{n}@sha256:{}", "0123456789abcdef".repeat(4)), ""),
    })
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_the_first_runner_that_routers_choose() {
    let names = [A, B, C];
    let mut runners = Vec::new();
    for name in names {
        let mut runner = Runner::new(name).await;
        runner.list(&[B, C, A]).await;
        assert_eq!(runner.take_changes(), 1);
        runners.push(runner);
    }
    // Computes the owner like a router: the first entry of the ring's preference list.
    let ring = Ring::new(names);
    let mut shares = [0; 3];
    for (image, tag) in requests() {
        let key = shard_key(&image, tag, PREFIX);
        let first = ring.preference(&key)[0];
        let first = &*ring.nodes()[usize::from(first)];
        let owners: Vec<_> = (0..3).filter(|&index| runners[index].owns(&key)).collect();
        assert_eq!(owners.iter().map(|&index| names[index]).collect::<Vec<_>>(), [first], "{image}");
        shares[owners[0]] += 1;
    }
    assert!(shares.iter().all(|&share| share > 200), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn each_change_is_published_once() {
    let mut runner = Runner::new(A).await;
    for (endpoints, wait, published) in [
        (&[A, B][..], Duration::ZERO, (1, 2)),
        (&[B, A], Duration::from_hours(1), (0, 2)),
        // A new runner joins the ring after `COALESCE`. Runners listed before then join with it.
        (&[A, B, C], COALESCE / 2, (0, 2)),
        (&[A, B, C, "10.0.0.4:9445"], Duration::ZERO, (0, 2)),
        (&[A, B, C, "10.0.0.4:9445"], COALESCE / 2, (1, 4)),
        // A removed runner leaves the ring at once, and cools down when it returns.
        (&[A, C, "10.0.0.4:9445"], Duration::ZERO, (1, 3)),
        (&[A, B, C, "10.0.0.4:9445"], COOLDOWN.saturating_sub(COALESCE), (0, 3)),
        (&[A, B, C, "10.0.0.4:9445"], 2 * COALESCE, (1, 4)),
    ] {
        runner.list(endpoints).await;
        runner.advance(wait).await;
        assert_eq!((runner.take_changes(), runner.ring.borrow().len()), published, "{endpoints:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_is_not_listed_owns_nothing() {
    let mut runner = Runner::new(A).await;
    for (endpoints, members, owns) in [
        (&[B, C][..], 2, 0),
        (&[], 0, 0),
        // If the ring is empty, new runners join at once.
        (&[A], 1, 1000),
        // A runner that cools down is the owner if there is no other runner.
        (&[], 0, 0),
        (&[A], 1, 1000),
        (&[B], 1, 0),
    ] {
        runner.list(endpoints).await;
        runner.take_changes();
        assert_eq!(runner.ring.borrow().len(), members, "{endpoints:?}");
        assert_eq!(requests().filter(|(image, _)| runner.owns(image)).count(), owns, "{endpoints:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_runner_that_stays_unlisted_and_does_not_drain_warns_once() {
    let warnings = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&warnings);
    // tracing makes a writer for each message, so the calls of `writer` count the warnings.
    let writer = move || {
        count.fetch_add(1, Ordering::Relaxed);
        std::io::sink()
    };
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(writer);
    let _guard = tracing::subscriber::set_default(log.finish());
    let warned = || warnings.load(Ordering::Relaxed);

    // A runner is listed once it is ready, and leaves the list when it drains.
    let runner = Runner::new(A).await;
    runner.list(&[B]).await;
    runner.advance(UNLISTED_WITHIN / 2).await;
    runner.list(&[A, B]).await;
    runner.advance(2 * UNLISTED_WITHIN).await;
    // The runner may become unready some time before the drain signal.
    runner.list(&[B]).await;
    runner.advance(UNLISTED_WITHIN / 2).await;
    runner.drain.drain();
    runner.advance(2 * UNLISTED_WITHIN).await;
    assert_eq!(**runner.ring.borrow(), [Arc::from(B)], "peers are still followed");
    runner.drain.drained().await;
    assert_eq!(warned(), 0);

    let unlisted = Runner::new(A).await;
    for endpoints in [&[B][..], &[B, C]] {
        unlisted.list(endpoints).await;
        unlisted.advance(UNLISTED_WITHIN * 2 / 3).await;
    }
    unlisted.advance(5 * UNLISTED_WITHIN).await;
    assert_eq!(warned(), 1);
}
