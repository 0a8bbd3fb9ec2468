//! How the router shuts down, and how it ends single connections.

use std::net::SocketAddr;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::fake_runner::{Gate, soon};
use porch_fn_tests::fleet::{Fleet, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const IMAGE: &str = "set-image:v1";

/// A router that is about to drain, and one call that is in flight on its runner.
struct Draining {
    fleet: Fleet,
    gate: Gate,
    held: JoinHandle<Result<String, Status>>,
}

impl Draining {
    async fn with(flags: &[&str]) -> Self {
        let fleet = Fleet::with(1, flags).await;
        let gate = Gate::new();
        fleet.runners[0].on(IMAGE, gate.echo());
        let held = fleet.caller().await.spawn(IMAGE);
        fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
        Self { fleet, gate, held }
    }
}

/// Waits until nobody listens on `address`.
async fn refused(address: SocketAddr) {
    let gone = async { while TcpStream::connect(address).await.is_ok() {} };
    soon("the port to be closed", gone).await;
}

#[tokio::test]
async fn after_its_delay_a_drain_closes_the_port_and_finishes_what_it_has() {
    let Draining { fleet, gate, held } = Draining::with(&["--drain-delay=0s"]).await;
    let (address, admin) = (fleet.router.address(), fleet.router.admin_address());
    let mut health = HealthClient::new(fleet.caller().await.channel());
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap();

    let drain = tokio::spawn(fleet.router.drain());
    refused(address).await;
    while soon("the stream's end", watched.message()).await.unwrap().is_some() {}
    assert!(!drain.is_finished() && !held.is_finished());
    assert_eq!(get(admin, "/readyz").await.0, 503, "probes and metrics are there to the end");

    gate.open();
    soon("the held call", held).await.unwrap().unwrap();
    assert!(soon("the drain", drain).await.unwrap());
    refused(admin).await;
}

#[tokio::test]
async fn calls_that_do_not_finish_in_time_are_cut_off_and_cancelled_at_the_runner() {
    let Draining { fleet, held, .. } = Draining::with(&["--drain-delay=0s", "--drain-timeout=200ms"]).await;
    let started = Instant::now();
    assert!(!soon("the drain", fleet.router.drain()).await);
    assert!(started.elapsed() >= Duration::from_millis(200));
    let status = soon("the held call", held).await.unwrap().unwrap_err();
    assert_ne!(status.code(), Code::Ok);
    fleet.runners[0].wait("the cancellation", |log| log.abandoned == 1).await;
}

#[tokio::test]
async fn connections_without_calls_do_not_hold_up_a_drain() {
    let fleet = Fleet::with(1, &["--drain-delay=0s"]).await;
    let address = fleet.router.address();
    let _silent = TcpStream::connect(address).await.unwrap();
    // Only a part of HTTP/2's preface. The router's own settings frame proves that it handles the
    // connection.
    let mut halting = TcpStream::connect(address).await.unwrap();
    halting.write_all(b"PRI * HTTP/2.0\r\n\r\nSM").await.unwrap();
    soon("the settings", halting.read_u8()).await.unwrap();
    let idle = fleet.caller().await;
    idle.runner_of(IMAGE).await;
    let mut health = HealthClient::new(fleet.caller().await.channel());
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap();
    assert!(soon("the drain", fleet.router.drain()).await);
    drop((idle, watched));
}

#[tokio::test]
async fn callers_do_not_notice_that_their_connections_are_ended() {
    let fleet = Fleet::with(2, &["--max-connection-age=50ms"]).await;
    // Like grpc-go, this client repeats calls on a new connection if the server did not accept
    // them.
    let client = Client::new(fleet.router.address());
    let until = Instant::now() + Duration::from_millis(500);
    let callers = (0..8).map(|number| {
        let client = &client;
        async move {
            let mut calls = 0;
            while Instant::now() < until {
                client.call(&format!("fn-{number}:v1"), "package").await.output();
                calls += 1;
            }
            calls
        }
    });
    let calls: usize = join_all(callers).await.into_iter().sum();
    assert_eq!(fleet.taken().iter().sum::<usize>(), calls, "none is lost and none is sent twice");
}
