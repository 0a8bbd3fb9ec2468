//! What takes a minute on the wire: connections that are idle for one, answers that nobody reads,
//! memory after a burst. And the floods against release builds, for longer.

use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_proto::EVALUATE_FUNCTION_PATH as EVALUATE;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::figure;
use porch_fn_tests::raw::hpack::encode;
use porch_fn_tests::raw::{Habits, INITIAL_WINDOW_SIZE, Seen, Stream, Wire, call_of, data, headers, message};
use rustix::process::Signal;
use tokio::time::Instant;

use super::super::wire::floods;
use super::super::wire::rows::assert_end_is_graceful;
use super::super::wire::target::{Kind, OTHER, Target, evaluation};

const KINDS: [Kind; 3] = [Kind::Router, Kind::Runner, Kind::Wrapper];
const PATIENCE: Duration = Duration::from_secs(10);
/// A minute, and the interval at which connections look at their answers.
const UNREAD: Duration = Duration::from_secs(70);

fn whole(path: &str, number: u32, content: &[u8]) -> Vec<u8> {
    [headers(number, &encode(&call_of(path)), false), data(number, &message(content), true)].concat()
}

/// D4.
#[tokio::test]
#[ignore = "minutes; tests/run nightly runs it"]
async fn a_connection_that_was_idle_for_a_minute_drains_gracefully() {
    join_all(KINDS.map(async |kind| {
        let mut target = Target::start(kind).await;
        let habits = Habits { answers_pings: false, ..Habits::default() };
        let idle = Wire::with(target.address, &[], habits).await;
        idle.send(whole("/grpc.health.v1.Health/Check", 1, &[])).await;
        assert_eq!(idle.ended(1, PATIENCE).await.and_then(|answer| answer.code()), Some(0));
        // After a minute of silence the server pings.
        let ping = idle.wait(UNREAD, |seen| seen.pings.first().cloned()).await.expect("a ping");
        idle.send(porch_fn_tests::raw::frame(porch_fn_tests::raw::PING, 1, 0, &ping)).await;
        target.server().signal(Signal::TERM);
        assert_end_is_graceful(&idle).await;
    }))
    .await;
}

/// D7.
#[tokio::test]
#[ignore = "minutes; tests/run nightly runs it"]
async fn answers_that_nobody_reads_are_dropped_after_a_minute() {
    const CALLS: usize = 800;
    join_all(KINDS.map(async |kind| {
        let flags: &[&str] = if kind == Kind::Wrapper {
            &["--max-concurrent-calls=1000"]
        } else {
            &["--max-inflight-bytes=12615680"]
        };
        let target = Target::with(kind, flags).await;
        let wire = Wire::with(target.address, &[(INITIAL_WINDOW_SIZE, 0)], Habits::default()).await;
        wire.settle(PATIENCE).await;
        let package = format!("kind: ResourceList\n{}", "#".repeat(15_000));
        for _ in 0..CALLS {
            wire.send(whole(EVALUATE, wire.stream(), &evaluation(package.as_bytes()))).await;
        }
        let began = Instant::now();
        let open = || wire.look(|seen| seen.streams.values().filter(|stream| !stream.is_over()).count());
        let answered = |seen: &Seen| (seen.streams.len() == CALLS).then_some(());
        assert!(wire.wait(UNREAD, answered).await.is_some(), "{kind:?}: not all calls have answers");
        figure(&format!("{kind:?}: {} answers are not read", open()));
        assert!(open() > 100);
        let all = |seen: &Seen| seen.streams.values().all(Stream::is_over).then_some(());
        assert!(wire.wait(UNREAD, all).await.is_some(), "{kind:?}: {} answers are kept", open());
        figure(&format!("{kind:?}: dropped after {:.0?}", began.elapsed()));
        // The reader is still connected.
        assert!(wire.settle(PATIENCE).await);
        let large = format!("kind: ResourceList\n{}", "#".repeat(500_000));
        let answer = Client::new(target.address).call(OTHER, large.clone()).await;
        assert_eq!(answer.output(), large.as_bytes());
    }))
    .await;
}

#[tokio::test]
#[ignore = "minutes; tests/run nightly runs it"]
async fn long_floods_delay_nobody() {
    for kind in KINDS {
        floods::run(kind, Duration::from_secs(2)).await;
    }
}
