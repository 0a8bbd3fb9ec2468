//! Defects that were found once, between two hops: one test each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use porch_fn_proto::EVALUATE_FUNCTION_PATH as EVALUATE;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server};
use porch_fn_tests::raw::hpack::encode;
use porch_fn_tests::raw::{ENHANCE_YOUR_CALM, Wire, call_of, data, fields, go_away, headers, message};
use tonic::Code;

use super::super::INPUT;
use super::beside::{Background, Beside};
use super::case::P99;
use super::hostile::{Attack, Hostile, ok};
use super::target::{Behind, IMAGE, Kind, OTHER, Target, evaluation};

const PATIENCE: Duration = Duration::from_secs(10);

/// Asserts that the router has found nothing wrong with its runners.
fn assert_no_runner_is_unavailable(router: &Server) {
    let log = router.log();
    let bad = log.lines().find(|line| line.contains("unavailable") || line.contains("ejected"));
    assert_eq!(bad, None);
}

/// N2.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_caller_with_long_headers_ejects_no_runner() {
    let sandbox = Sandbox::new();
    let flags = sandbox.executables(&[(&format!("{IMAGE},{OTHER}"), "exec cat")]);
    let runners = [sandbox.runner(&flags).await, sandbox.runner(&flags).await];
    let router = sandbox.router(&[&runners[0], &runners[1]], &[]).await;
    let behind = Behind::start().await;
    let beside = Beside::start(&behind.background, router.address(), OTHER, behind.address);
    let (began, client) = (Instant::now(), Client::new(router.address()));
    // The first one is below HTTP/2's own limit, and above it with what a router adds.
    for (length, code) in [
        (1_048_180, Code::ResourceExhausted),
        (1_000_000, Code::ResourceExhausted),
        (65_536, Code::ResourceExhausted),
        (65_500, Code::ResourceExhausted),
        (65_300, Code::Ok),
        (65_000, Code::Ok),
    ] {
        for _ in 0..6 {
            let value = "v".repeat(length);
            let answer = client.try_call_with(IMAGE, INPUT, None, &[("x", &value)]).await;
            let answer = answer.unwrap_or_else(|error| panic!("{length}: {error:?}"));
            assert_eq!(answer.code, code, "{length}: {}", answer.message);
        }
    }
    let met = beside.since(began).await;
    assert!(met.failures.is_empty(), "{met:?}");
    assert_no_runner_is_unavailable(&router);
}

/// N5: a known limit of h2, which derives the number of CONTINUATION frames from its own size of
/// frames, 1 MiB between hops. If this fails, h2 counts otherwise.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn long_metadata_in_small_frames_ends_a_connection_between_hops() {
    for (kind, is_ended) in [(Kind::Router, false), (Kind::Runner, true), (Kind::Wrapper, true)] {
        let target = Target::start(kind).await;
        // 98,304 bytes are six frames of HEADERS and CONTINUATION.
        for (length, is_ended) in [(90_000, false), (130_000, is_ended), (500_000, is_ended)] {
            let wire = Wire::open(target.address).await;
            let list = [call_of(EVALUATE), fields([("x", &*"v".repeat(length))])].concat();
            let call = [headers(1, &encode(&list), false), data(1, &message(&evaluation(b"a: b")), true)];
            wire.send(call.concat()).await;
            let answer = wire.ended(1, PATIENCE).await.and_then(|answer| answer.code());
            assert_eq!(answer, (!is_ended).then_some(8), "{kind:?}, {length}");
            assert_eq!(wire.has_ended_with(ENHANCE_YOUR_CALM), is_ended, "{kind:?}, {length}");
        }
    }
}

/// A runner that answers, and sends a GOAWAY at the 11th request of each connection.
fn ending() -> Attack {
    Arc::new(|stream, turn| {
        let answer = [
            headers(stream, &encode(&ok()), false),
            data(stream, &message(&evaluation(INPUT.as_bytes())), false),
            headers(stream, &encode(&fields([("grpc-status", "0")])), true),
        ];
        match turn {
            0 if stream > 20 => Some(go_away(20, 0)),
            0 => Some(answer.concat()),
            _ => None,
        }
    })
}

/// D8.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_goaway_of_a_healthy_runner_is_no_failure() {
    let background = Background::new();
    let runner = Hostile::start(&background, ending()).await;
    let behind = Behind::start().await;
    let images: [(&str, SocketAddr); 1] = [(OTHER, runner.address)];
    let mut target = Target::before(Kind::Router, &images, behind).await;
    let (began, client) = (Instant::now(), Client::new(target.address));
    for _ in 0..120 {
        let answer = client.call(IMAGE, INPUT).await;
        assert_eq!(answer.output(), INPUT);
    }
    assert_no_runner_is_unavailable(target.server());
    let met = target.beside.since(began).await;
    assert!(met.failures.is_empty() && met.p99 <= P99, "{met:?}");
}

/// D8, for an error of HTTP: a proxy between router and runner may send it.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_error_of_http_is_an_answer_and_no_lost_connection() {
    for (status, code) in
        [("431", Code::ResourceExhausted), ("502", Code::Unavailable), ("404", Code::Unimplemented)]
    {
        let background = Background::new();
        let list = fields([(":status", status), ("content-type", "text/html")]);
        let attack: Attack = Arc::new(move |stream, turn| {
            (turn == 0).then(|| match stream {
                // The first call begins the test.
                0..20 => ending()(stream, turn).unwrap_or_default(),
                _ => headers(stream, &encode(&list), true),
            })
        });
        let runner = Hostile::start(&background, attack).await;
        let sandbox = Sandbox::new();
        let flag = porch_fn_tests::process::runners_flag([runner.address]);
        let router = sandbox.server("porch-fn-router", [flag]).await;
        router.wait_runners_healthy().await;
        let client = Client::new(router.address());
        let mut codes = Vec::new();
        for _ in 0..40 {
            codes.push(client.call(IMAGE, INPUT).await.code);
        }
        assert_eq!(codes.last(), Some(&code), "{codes:?}");
        assert!(codes.iter().all(|got| [Code::Ok, code].contains(got)), "{codes:?}");
        assert_no_runner_is_unavailable(&router);
    }
}
