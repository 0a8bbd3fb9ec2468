//! How the router shuts down, and how it closes old connections.

use std::net::SocketAddr;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::fake_runner::soon;
use porch_fn_tests::fleet::{Fleet, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};
use tonic::Code;

use super::health::{wait_serving, watch};

const IMAGE: &str = "set-image:v1";

async fn wait_closed(address: SocketAddr) {
    let gone = async { while TcpStream::connect(address).await.is_ok() {} };
    soon("the port to be closed", gone).await;
}

#[tokio::test]
async fn a_drain_closes_the_port_and_finishes_the_calls_in_flight() {
    let fleet = Fleet::with(1, &["--drain-delay=0s"]).await;
    let (gate, held) = fleet.hold(0, IMAGE).await;
    let (address, admin) = (fleet.router.address(), fleet.router.admin_address());
    let mut watched = watch(&fleet, "").await;
    wait_serving(&mut watched).await;

    let drain = tokio::spawn(fleet.router.drain());
    wait_closed(address).await;
    while soon("the stream's end", watched.message()).await.unwrap().is_some() {}
    assert!(!drain.is_finished() && !held.is_finished());
    assert_eq!(get(admin, "/readyz").await.0, 503, "the admin port is open until the end");

    gate.open();
    soon("the held call", held).await.unwrap().unwrap();
    assert!(soon("the drain", drain).await.unwrap());
    wait_closed(admin).await;
}

#[tokio::test]
async fn calls_that_exceed_the_drain_timeout_fail_and_are_cancelled_at_the_runner() {
    let fleet = Fleet::with(1, &["--drain-delay=0s", "--drain-timeout=200ms"]).await;
    let (_gate, held) = fleet.hold(0, IMAGE).await;
    let started = Instant::now();
    assert!(!soon("the drain", fleet.router.drain()).await);
    assert!(started.elapsed() >= Duration::from_millis(200));
    let status = soon("the held call", held).await.unwrap().unwrap_err();
    assert_ne!(status.code(), Code::Ok);
    fleet.runners[0].wait("the cancellation", |log| log.abandoned == 1).await;
}

#[tokio::test]
async fn connections_without_calls_do_not_delay_a_drain() {
    let fleet = Fleet::with(1, &["--drain-delay=0s"]).await;
    let address = fleet.router.address();
    let _silent = TcpStream::connect(address).await.unwrap();
    // This client sends only a part of HTTP/2's preface. When the router's settings frame arrives,
    // the router handles the connection.
    let mut halting = TcpStream::connect(address).await.unwrap();
    halting.write_all(b"PRI * HTTP/2.0\r\n\r\nSM").await.unwrap();
    soon("the settings", halting.read_u8()).await.unwrap();
    let idle = fleet.caller().await;
    idle.runner_of(IMAGE).await;
    let mut watched = watch(&fleet, "").await;
    wait_serving(&mut watched).await;
    assert!(soon("the drain", fleet.router.drain()).await);
    drop((idle, watched));
}

#[tokio::test]
async fn no_call_fails_when_old_connections_are_closed() {
    let fleet = Fleet::with(2, &["--max-connection-age=50ms"]).await;
    // Like grpc-go, this client repeats a call on a new connection if the server did not accept the
    // call.
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
