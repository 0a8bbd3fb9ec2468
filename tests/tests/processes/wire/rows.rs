//! Defects that were found once, at a server: one test each. The names of the sections are those of
//! docs/wire.md.

use std::time::Duration;
use tokio::time::Instant;

use futures_util::future::join_all;
use porch_fn_proto::EVALUATE_FUNCTION_PATH as EVALUATE;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Usage, eventually};
use porch_fn_tests::raw::hpack::{encode, encode_repeated};
use porch_fn_tests::raw::{
    CANCEL, ENHANCE_YOUR_CALM, Habits, INITIAL_WINDOW_SIZE, MAX_PAYLOAD, PROTOCOL_ERROR, Seen, Wire, call_of,
    data, fields, headers, message, prefixed, reset, settings, window_update,
};
use rustix::process::Signal;
use tonic::Code;

use super::super::INPUT;
use super::beside::Beside;
use super::case::{MORE_MEMORY, P99};
use super::floods::p99_limit;
use super::target::{Behind, IMAGE, Kind, OTHER, Target, evaluation};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const PATIENCE: Duration = Duration::from_secs(10);

fn whole(path: &str, stream: u32, content: &[u8]) -> Vec<u8> {
    [headers(stream, &encode(&call_of(path)), false), data(stream, &message(content), true)].concat()
}

fn stream(number: usize) -> u32 {
    2 * u32::try_from(number).unwrap() + 1
}

/// N1.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn one_connection_that_flips_its_settings_delays_nobody() {
    for (kind, tries) in [(Kind::Router, 3), (Kind::Runner, 3)] {
        let target = Target::start(kind).await;
        // Other programs use the machine, too. A defect is there each time.
        let mut best = Duration::MAX;
        for _ in 0..tries {
            best = best.min(flip(&target).await);
        }
        assert!(best <= p99_limit(), "{kind:?}: {best:?}");
    }
}

/// Opens streams and changes their windows. Returns how long others waited.
async fn flip(target: &Target) -> Duration {
    let wire = Wire::open(target.address).await;
    wire.settle(PATIENCE).await;
    let block = encode(&call_of(EVALUATE));
    let began = Instant::now();
    for number in (0..4000).map(stream) {
        wire.send(headers(number, &block, false)).await;
    }
    let flips: Vec<_> =
        (0..400).flat_map(|turn| settings(&[(INITIAL_WINDOW_SIZE, 60_000 + turn % 2)])).collect();
    wire.send(flips).await;
    assert!(wire.wait_closed(PATIENCE).await, "{:?}", target.kind);
    assert!(wire.has_ended_with(ENHANCE_YOUR_CALM), "{:?}", target.kind);
    let met = target.beside.since(began).await;
    assert!(met.failures.is_empty(), "{met:?}");
    met.p99
}

/// N3: a known limit of h2. If this fails, h2 has learned to end only the stream.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_illegal_header_ends_the_connection_with_all_its_calls() {
    for kind in [Kind::Router, Kind::Runner, Kind::Wrapper] {
        let target = Target::start(kind).await;
        for (name, value) in [("X-A", "b"), ("x-a", "b\r\nc: d")] {
            let wire = Wire::open(target.address).await;
            let other = wire.begin(&call_of(EVALUATE), false).await;
            let list = [call_of(EVALUATE), fields([(name, value)])].concat();
            wire.begin(&list, false).await;
            assert!(wire.wait_closed(PATIENCE).await);
            assert!(wire.has_ended_with(PROTOCOL_ERROR));
            assert!(wire.look(|seen| !seen.streams.contains_key(&other)), "the other call has an answer");
        }
    }
}

/// N4.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn calls_without_a_message_take_no_place_of_a_function_pod() {
    let target = Target::start(Kind::Wrapper).await;
    let wire = Wire::open(target.address).await;
    let began = Instant::now();
    for _ in 0..1000 {
        wire.begin(&call_of(EVALUATE), false).await;
    }
    assert!(wire.settle(PATIENCE).await);
    let client = Client::new(target.address);
    let answers = join_all((0..20).map(|_| client.call(IMAGE, INPUT))).await;
    for answer in answers {
        assert_eq!(answer.output(), INPUT);
    }
    let met = target.beside.since(began).await;
    assert!(met.failures.is_empty() && met.p99 <= P99, "{met:?}");
}

/// D1.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_report_above_any_window_is_sent() {
    const IMAGES: usize = 300;
    let sandbox = Sandbox::new();
    let long = "long/".repeat(35);
    let images: Vec<_> = (0..IMAGES).map(|number| format!("example.com/{long}f{number}:v1")).collect();
    let pod = sandbox.script("pod", "exit 3");
    let programs = images.iter().map(|image| (&**image, "none".into()));
    let runner = sandbox.runner(sandbox.local_programs(&pod, programs)).await;
    let client = Client::new(runner.address());
    let answers =
        join_all(images.iter().map(|image| client.call_within(image, INPUT, Duration::from_secs(20))));
    assert!(answers.await.iter().all(|answer| answer.code != Code::Ok));
    for (window, first) in [(65_535, 0), (1000, 0), (0, 1), (4 << 20, 0)] {
        let own = [(INITIAL_WINDOW_SIZE, window)];
        let wire = Wire::with(runner.address(), &own, Habits::default()).await;
        wire.send(whole("/porch_fn.v1.Shard/Describe", 1, &[])).await;
        if first > 0 {
            wire.settle(PATIENCE).await;
            wire.send(window_update(1, 10_000)).await;
        }
        let answer =
            wire.ended(1, PATIENCE).await.unwrap_or_else(|| panic!("no answer with a window of {window}"));
        assert_eq!(answer.code(), Some(0));
        assert!(answer.bytes > 80_000, "{}", answer.bytes);
    }
    // A window of a byte is enough for a health check.
    let wire = Wire::with(runner.address(), &[(INITIAL_WINDOW_SIZE, 1)], Habits::default()).await;
    wire.send(whole(CHECK, 1, &[])).await;
    assert_eq!(wire.ended(1, PATIENCE).await.and_then(|answer| answer.code()), Some(0));
}

/// D2.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn half_health_checks_hold_no_memory_and_end() {
    for kind in [Kind::Router, Kind::Runner, Kind::Wrapper] {
        let target = Target::start(kind).await;
        let wire = Wire::open(target.address).await;
        wire.settle(PATIENCE).await;
        Usage::reset_peak(target.pid());
        let part = prefixed(0, 4 << 20, &vec![0; 3 << 20]);
        for number in (0..30).map(stream) {
            let head = headers(number, &encode(&call_of(CHECK)), false);
            wire.send([head, data(number, &part, false)].concat()).await;
        }
        for number in (0..30).map(stream) {
            assert!(wire.ended(number, Duration::from_secs(6)).await.is_some(), "{kind:?}");
        }
        let more = target.usage().peak.saturating_sub(target.idle);
        assert!(more <= MORE_MEMORY, "{kind:?}: {more} KiB more");
    }
}

/// D3.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn header_lists_of_many_fields_hold_little_memory() {
    let block = [encode(&call_of(EVALUATE)), encode_repeated("a", "", 31_000)].concat();
    for kind in [Kind::Router, Kind::Runner, Kind::Wrapper] {
        let target = Target::start(kind).await;
        let wire = Wire::open(target.address).await;
        wire.settle(PATIENCE).await;
        Usage::reset_peak(target.pid());
        for number in (0..300).map(stream) {
            wire.send(headers(number, &block, false)).await;
        }
        wire.settle(PATIENCE).await;
        let first = wire.ended(1, PATIENCE).await.and_then(|answer| answer.code());
        assert_eq!(first, Some(8), "{kind:?}");
        let more = target.usage().peak.saturating_sub(target.idle);
        assert!(more <= MORE_MEMORY, "{kind:?}: {more} KiB more");
    }
}

/// D4, for a connection that is closed in favour of another one. `nightly wire` has the case of a
/// connection that was idle for a minute.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_idle_connection_ends_gracefully() {
    let mut target = Target::with(Kind::Router, &["--max-connections=3", "--drain-delay=0s"]).await;
    let habits = Habits { answers_pings: false, ..Habits::default() };
    let idle = Wire::with(target.address, &[], habits).await;
    idle.send(whole(CHECK, 1, &[])).await;
    assert_eq!(idle.ended(1, PATIENCE).await.and_then(|answer| answer.code()), Some(0));
    // The limit is reached by this one, or by the next one.
    let others = [Wire::open(target.address).await, Wire::open(target.address).await];
    assert_end_is_graceful(&idle).await;
    drop(others);
    // A drain ends connections likewise.
    let idle = Wire::with(target.address, &[], habits).await;
    idle.send(whole(CHECK, 1, &[])).await;
    assert_eq!(idle.ended(1, PATIENCE).await.and_then(|answer| answer.code()), Some(0));
    target.server().signal(Signal::TERM);
    assert_end_is_graceful(&idle).await;
}

/// A call that is on its way when a connection ends is answered: first comes a GOAWAY with the
/// highest number, and the last one only after the answer to a PING.
pub(in super::super) async fn assert_end_is_graceful(wire: &Wire) {
    let first = |seen: &Seen| seen.go_aways.first().copied().zip(seen.pings.last().cloned());
    let Some((first, ping)) = wire.wait(PATIENCE, first).await else {
        panic!("no GOAWAY and PING: {:?}", wire.look(|seen| (seen.go_aways.clone(), seen.is_closed)));
    };
    assert_eq!(first, (0x7fff_ffff, 0));
    wire.send(whole(CHECK, 3, &[])).await;
    wire.send(porch_fn_tests::raw::frame(porch_fn_tests::raw::PING, 1, 0, &ping)).await;
    let answer = wire.ended(3, PATIENCE).await.expect("an answer");
    assert_eq!(answer.code(), Some(0));
    assert!(wire.wait_closed(PATIENCE).await);
    assert_eq!(wire.look(|seen| seen.go_aways.last().copied()), Some((3, 0)));
}

/// D5.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn unfinished_calls_keep_no_connection() {
    let target = Target::with(Kind::Router, &["--max-connections=10"]).await;
    let mut holders = Vec::new();
    // The caller beside has one.
    for _ in 0..9 {
        let wire = Wire::open(target.address).await;
        let number = wire.begin(&call_of(CHECK), false).await;
        holders.push((wire, number));
    }
    for (wire, number) in &holders {
        assert!(wire.ended(*number, Duration::from_secs(7)).await.is_some());
    }
    let wire = Wire::open(target.address).await;
    wire.send(whole(CHECK, 1, &[])).await;
    assert_eq!(wire.ended(1, PATIENCE).await.and_then(|answer| answer.code()), Some(0));
}

/// D7, as far as it takes no minute: `nightly wire` has the rest.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_caller_that_leaves_frees_the_answers_it_has_not_read() {
    let target = Target::with(Kind::Runner, &["--max-inflight-bytes=12615680"]).await;
    let own = [(INITIAL_WINDOW_SIZE, 0)];
    let wire = Wire::with(target.address, &own, Habits::default()).await;
    wire.settle(PATIENCE).await;
    let package = format!("kind: ResourceList\n{}", "#".repeat(15_000));
    for number in (0..840).map(stream) {
        wire.send(whole(EVALUATE, number, &evaluation(package.as_bytes()))).await;
    }
    wire.settle(PATIENCE).await;
    let has_answers = |seen: &Seen| (seen.streams.len() >= 700).then_some(());
    assert!(wire.wait(PATIENCE, has_answers).await.is_some(), "{}", wire.look(|seen| seen.streams.len()));
    drop(wire);
    let client = Client::new(target.address);
    let large = format!("kind: ResourceList\n{}", "#".repeat(500_000));
    eventually("room", async || (client.call(OTHER, large.clone()).await.code == Code::Ok).then_some(()))
        .await;
}

/// D9.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_slow_sender_is_not_refused_while_the_account_is_full() {
    let flags = ["--max-inflight-bytes=12615680", "--max-request-body-size=6291456"];
    let target = Target::with(Kind::Runner, &flags).await;
    let wire = Wire::open(target.address).await;
    wire.settle(PATIENCE).await;
    let size = 6_000_000;
    for number in [1, 3] {
        let head = headers(number, &encode(&call_of(EVALUATE)), false);
        wire.send([head, data(number, &prefixed(0, size, &[]), false)].concat()).await;
    }
    let client = Client::new(target.address);
    let third = "#".repeat(3_000_000);
    let third = async {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        client.call_within(IMAGE, third, Duration::from_secs(2)).await
    };
    let senders = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..35 {
            ticks.tick().await;
            wire.send([1, 3].map(|number| data(number, &[b'#'; MAX_PAYLOAD], false)).concat()).await;
        }
    };
    tokio::join!(third, senders);
    for number in [1, 3] {
        let ended = wire.look(|seen| seen.streams.get(&number).cloned());
        assert!(ended.is_none(), "a sender with 160 KiB/s was refused: {ended:?}");
    }
}

/// N7.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn calls_that_are_cancelled_at_once_start_nothing() {
    const CALLS: usize = 2000;
    let sandbox = Sandbox::new();
    let flags = sandbox.executables(&[(IMAGE, "echo >> started; exec cat")]);
    let runner = sandbox.runner(flags).await;
    let behind = Behind::start().await;
    let beside = Beside::start(&behind.background, runner.address(), IMAGE, behind.address);
    beside.since(Instant::now()).await;
    let began = Instant::now();
    let wire = Wire::open(runner.address()).await;
    wire.settle(PATIENCE).await;
    let package = format!("kind: ResourceList\n{}", "#".repeat(1000));
    for number in (0..CALLS).map(stream) {
        let call = whole(EVALUATE, number, &evaluation(package.as_bytes()));
        wire.send([call, reset(number, CANCEL)].concat()).await;
    }
    wire.settle(PATIENCE).await;
    let met = beside.since(began).await;
    assert!(met.failures.is_empty() && met.slowest < Duration::from_secs(1), "{met:?}");
    let started = std::fs::read_to_string(sandbox.path("started")).unwrap().lines().count();
    // The caller beside starts some, too. A write may be received in two parts.
    assert!(started < CALLS / 10, "{started} processes");
}

/// N8: what callers get for a call that is none, on each path.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn health_and_shard_refuse_what_the_evaluator_refuses() {
    let target = Target::start(Kind::Runner).await;
    let twice = [message(&[]), message(&[])].concat();
    for path in [EVALUATE, CHECK, "/grpc.health.v1.Health/Watch", "/porch_fn.v1.Shard/Describe"] {
        let with = |name: &str, value: &str| {
            let mut list = call_of(path);
            list.retain(|field| field.0 != name);
            let at = usize::from(!name.starts_with(':')) * list.len();
            list.insert(at, (name.to_owned(), value.to_owned()));
            list
        };
        for (list, body, http, code) in [
            (with("content-type", "text/plain"), message(&[]), "415", 3),
            (with("content-type", "application/grpc-web"), message(&[]), "415", 3),
            (with(":method", "GET"), message(&[]), "405", 13),
            (with("grpc-timeout", "1x"), message(&[]), "400", 13),
            (call_of(path), twice.clone(), "200", 13),
        ] {
            let wire = Wire::open(target.address).await;
            let number = wire.begin(&list, false).await;
            wire.send(data(number, &body, true)).await;
            let answer = wire.ended(number, PATIENCE).await.expect("an answer");
            assert_eq!(
                (answer.field(":status"), answer.code()),
                (Some(http), Some(code)),
                "{path}: {list:?}"
            );
        }
    }
}
