//! Floods: one connection sends as many cheap frames or calls as it can. The others wait less than
//! 100 ms, as with grpc-go. A peer whose frames carry no call is ended.

use std::time::Duration;
use tokio::time::Instant;

use porch_fn_tests::process::{Usage, figure};
use porch_fn_tests::raw::hpack::{encode, encode_repeated};
use porch_fn_tests::raw::{
    ACK, CANCEL, CONTINUATION, HEADERS, Habits, INITIAL_WINDOW_SIZE, MAX_PAYLOAD, PING, PRIORITY, SETTINGS,
    Wire, call_of, data, frame, headers, message, ping, prefixed, reset, settings, window_update,
};

use super::target::{Kind, TURN, Target, evaluation};

/// For the caller beside, with programs as users run them: `nightly wire`. Debug builds are several
/// times slower, and they share the machine with the other tests.
const P99: Duration = Duration::from_millis(100);
const P99_DEBUG: Duration = Duration::from_secs(1);
const TRIES: usize = 3;
/// An attacker that is ended comes again for this long.
const LASTS: Duration = Duration::from_millis(150);
/// Before, for comparison.
const QUIET: Duration = Duration::from_millis(50);
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const EVALUATE: &str = "/evaluator.FunctionEvaluator/EvaluateFunction";

type Frames = Box<dyn Fn(usize) -> Vec<u8>>;

struct Flood {
    name: &'static str,
    before: Vec<u8>,
    /// The frames of one turn.
    frames: Frames,
    turns: usize,
    /// Whether the server must end the connection.
    is_ended: bool,
}

/// The stream of a turn.
fn stream(turn: usize) -> u32 {
    2 * u32::try_from(turn).unwrap() + 1
}

fn begin(path: &str, stream: u32) -> Vec<u8> {
    headers(stream, &encode(&call_of(path)), false)
}

fn open(streams: usize) -> Vec<u8> {
    let block = encode(&call_of(EVALUATE));
    (0..streams).flat_map(|turn| headers(stream(turn), &block, false)).collect()
}

/// Frames that carry no call. The server must end the connection.
fn frames() -> Vec<Flood> {
    let mut floods = Vec::new();
    let mut add = |name, before: Vec<u8>, turns, frames: Frames| {
        floods.push(Flood { name, before, frames, turns, is_ended: true });
    };
    let flip = |turn| settings(&[(INITIAL_WINDOW_SIZE, 1 + (turn % 2) as u32 * 60_000)]);
    add("SETTINGS that change the window of 4,000 streams", open(4000), 4000, Box::new(flip));
    add("SETTINGS that change the window of 30,000 streams", open(30_000), 4000, Box::new(flip));
    add("SETTINGS without content", vec![], 10_000, Box::new(|_| frame(SETTINGS, 0, 0, &[])));
    add("acknowledgements of SETTINGS", vec![], 20_000, Box::new(|_| frame(SETTINGS, ACK, 0, &[])));
    add("PING", vec![], 20_000, Box::new(|_| ping()));
    add("acknowledgements of PING", vec![], 20_000, Box::new(|_| frame(PING, ACK, 0, &[0; 8])));
    add("WINDOW_UPDATE of the connection", vec![], 20_000, Box::new(|_| window_update(0, 1)));
    add(
        "WINDOW_UPDATE of 1,000 streams",
        open(1000),
        20_000,
        Box::new(|turn| window_update(stream(turn % 1000), 1)),
    );
    add(
        "PRIORITY",
        open(1000),
        20_000,
        Box::new(|turn| frame(PRIORITY, 0, stream(turn % 1000), &[0, 0, 0, 0, 9])),
    );
    add("unknown frames", vec![], 20_000, Box::new(|_| frame(99, 0, 0, b"x")));
    add("empty DATA", begin(EVALUATE, 1), 20_000, Box::new(|_| data(1, &[], false)));
    add(
        "empty CONTINUATION",
        frame(HEADERS, 0, 1, &[]),
        20_000,
        Box::new(|_| frame(CONTINUATION, 0, 1, &[])),
    );
    add(
        "RST_STREAM of a stream that has ended",
        [begin(EVALUATE, 1), reset(1, CANCEL)].concat(),
        20_000,
        Box::new(|_| reset(1, CANCEL)),
    );
    floods
}

/// Calls, and what belongs to them.
fn calls() -> Vec<Flood> {
    let mut floods = Vec::new();
    let mut add = |name, turns, frames: Frames| {
        floods.push(Flood { name, before: Vec::new(), frames, turns, is_ended: false });
    };
    add(
        "HEADERS and RST_STREAM",
        5_000,
        Box::new(|turn| [begin(EVALUATE, stream(turn)), reset(stream(turn), CANCEL)].concat()),
    );
    add(
        "HEADERS and a WINDOW_UPDATE of 0",
        2_000,
        Box::new(|turn| [begin(EVALUATE, stream(turn)), window_update(stream(turn), 0)].concat()),
    );
    let call = message(&evaluation(b"kind: ResourceList\n"));
    let whole =
        move |path, body: &[u8], turn| [begin(path, stream(turn)), data(stream(turn), body, true)].concat();
    add(
        "whole calls and RST_STREAM",
        2_000,
        Box::new(move |turn| [whole(EVALUATE, &call, turn), reset(stream(turn), CANCEL)].concat()),
    );
    add(
        "HEADERS of 4,000 calls, and a byte",
        4_000,
        Box::new(|turn| [begin(EVALUATE, stream(turn)), data(stream(turn), &[0], false)].concat()),
    );
    add("health checks", 1_500, Box::new(move |turn| whole(HEALTH, &message(&[]), turn)));
    add("health watches", 1_500, Box::new(move |turn| whole(WATCH, &message(&[]), turn)));
    add(
        "DATA of 1 byte",
        20_000,
        Box::new(|turn| match turn {
            0 => [begin(EVALUATE, 1), data(1, &prefixed(0, 200_000, &[]), false)].concat(),
            _ => data(1, b"#", false),
        }),
    );
    let large = [encode(&call_of(EVALUATE)), encode_repeated("a", "", 31_000)].concat();
    add("header lists of 1 MB in 31 KB", 300, Box::new(move |turn| headers(stream(turn), &large, false)));
    let large = [call_of(HEALTH), vec![("x".to_owned(), "x".repeat(60_000))]].concat();
    add("header lists of 60 KB", 300, Box::new(move |turn| headers(stream(turn), &encode(&large), false)));
    add(
        "half health checks of 4 MiB",
        200,
        Box::new(|turn| {
            [
                begin(HEALTH, stream(turn)),
                data(stream(turn), &prefixed(0, 4 << 20, &[0; MAX_PAYLOAD - 5]), false),
            ]
            .concat()
        }),
    );
    add("unknown methods", 1_500, Box::new(move |turn| whole("/a/b", &message(&[]), turn)));
    floods
}

impl Flood {
    /// Floods until the turns are over or the server ends the connection, which it must do if it
    /// should.
    async fn once(&self, target: &Target) -> Result<(), String> {
        let habits = Habits { answers_pings: false, grants: false };
        let wire = Wire::with(target.address, &[], habits).await;
        wire.settle(Duration::from_secs(5)).await;
        wire.send(self.before.clone()).await;
        let mut bytes = Vec::new();
        for turn in 0..self.turns {
            bytes.extend((self.frames)(turn));
            if (bytes.len() > MAX_PAYLOAD || turn + 1 == self.turns)
                && !wire.send(std::mem::take(&mut bytes)).await
            {
                break;
            }
        }
        if self.is_ended {
            if !wire.wait_closed(Duration::from_secs(10)).await {
                return Err("the connection was not ended".into());
            }
        } else {
            wire.settle(Duration::from_secs(10)).await;
        }
        Ok(())
    }

    async fn run(&self, target: &Target, lasts: Duration) -> Result<String, String> {
        let mut slow = String::new();
        let limit = p99_limit();
        for _ in 0..TRIES {
            let quiet = Instant::now();
            tokio::time::sleep(QUIET).await;
            let before = target.beside.since(quiet).await;
            Usage::reset_peak(target.pid());
            let began = Instant::now();
            while began.elapsed() < lasts {
                self.once(target).await?;
            }
            let lasted = began.elapsed();
            let (met, peak) = target.since(began).await?;
            let row = format!(
                "{} | {:.0?} | {:.0?} | {:.0?} | {} | {lasted:.1?}",
                self.name,
                before.p99,
                met.p99,
                met.slowest,
                peak.saturating_sub(target.idle) / 1024
            );
            if met.p99 <= limit {
                return Ok(row);
            }
            slow = row;
        }
        Err(slow)
    }
}

/// How long the caller beside may wait.
pub(super) fn p99_limit() -> Duration {
    let is_release = std::env::var("PORCH_FN_BIN_DIR").is_ok_and(|folder| folder.ends_with("/release"));
    if is_release { P99 } else { P99_DEBUG }
}

/// Runs all floods against one server, each for this long.
pub(in super::super) async fn run(kind: Kind, lasts: Duration) {
    let _turn = TURN.lock().await;
    let mut target = Target::start(kind).await;
    let mut failures = Vec::new();
    for flood in frames().into_iter().chain(calls()) {
        match flood.run(&target, lasts).await {
            Ok(row) => figure(&format!("{kind:?} | {row}")),
            Err(error) => {
                failures.push(format!("{}: {error}", flood.name));
                // Not all of its memory may be free again.
                target = Target::start(kind).await;
            }
        }
    }
    assert!(failures.is_empty(), "{} floods harmed others:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_flood_of_a_router_delays_others() {
    run(Kind::Router, LASTS).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_flood_of_a_runner_delays_others() {
    run(Kind::Runner, LASTS).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_flood_of_a_wrapper_server_delays_others() {
    run(Kind::Wrapper, LASTS).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_flood_of_up_delays_others() {
    run(Kind::Up, LASTS).await;
}
