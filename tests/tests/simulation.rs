//! A real router with 1,000 runners and 100,000 images: what it needs at that size. The runners are one server of this
//! test behind a thousand addresses, which answers at once.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use porch_fn_grpc::serve;
use porch_fn_grpc::{Call, Evaluate, Options, Reply, Server};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_proto::Chunks;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{self, Sandbox, eventually, figure};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

const RUNNERS: usize = 1_000;
const IMAGES: usize = 100_000;
const CALLERS: usize = 64;
const CONNECTIONS: usize = 4;
/// What a router may take, in KiB: four times as much as it did when this was written.
const MEMORY: usize = 512 * 1024;

struct Echo;

impl Evaluate for Echo {
    async fn evaluate(&self, _: Call) -> Reply {
        Reply::evaluated(Chunks::default(), Bytes::new())
    }
}

/// Answers on all addresses of this machine, all of 127/8 among them, until the drain begins.
async fn runners(drain: drain::Watch) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let health = Health::new();
    health.set("", true);
    let options = Options {
        max_message: 1024 * 1024,
        default_timeout: Duration::from_mins(1),
        max_timeout: Duration::MAX,
        inflight: None,
        places: None,
        tell_load: true,
        observer: None,
        tracer: None,
    };
    let server = Server::new(Arc::new(Echo), &health, options);
    let handler = move |request| {
        let server = Arc::clone(&server);
        async move { server.handle(request).await }
    };
    let options = serve::Options { max_age: None, max_connections: 1000 };
    tokio::spawn(serve::serve(listener, None, options, handler, drain));
    port
}

fn resident_kib(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// How many runners the router's page shows well.
async fn well(router: &process::Server) -> usize {
    let page = router.json("/shards").await;
    page["shards"].as_array().unwrap().iter().filter(|shard| shard["state"] == "healthy").count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and 3,000 open files; tests/simulation runs it"]
async fn a_router_with_a_thousand_runners_and_a_hundred_thousand_images() {
    let (_signal, drain) = drain::channel();
    let port = runners(drain).await;
    let sandbox = Sandbox::new();
    let alone = sandbox.server("porch-fn-router", ["--runners=static:///127.0.0.1:1"]).await;
    let idle = resident_kib(alone.pid().unwrap());

    let addresses: Vec<_> =
        (0..RUNNERS).map(|n| format!("127.1.{}.{}:{port}", n / 250, n % 250 + 1)).collect();
    let began = Instant::now();
    let router =
        sandbox.server("porch-fn-router", [format!("--runners=static:///{}", addresses.join(","))]).await;
    eventually("all runners are healthy", async || (well(&router).await == RUNNERS).then_some(())).await;
    let pid = router.pid().unwrap();
    figure(&format!("{RUNNERS} runners known, connected and well {:.1?} after the start", began.elapsed()));
    let connected = resident_kib(pid);
    figure(&format!("router's memory: alone {idle} KiB, with {RUNNERS} runners {connected} KiB"));

    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| Arc::new(Client::new(router.address()))).collect();
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for caller in 0..CALLERS {
        let (client, next) = (Arc::clone(&clients[caller % CONNECTIONS]), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let image = next.fetch_add(1, Ordering::Relaxed);
                if image >= IMAGES {
                    return;
                }
                let image = format!("ghcr.io/kptdev/krm-functions-catalog/function-{image}:v0.4.1");
                client.call(&image, "package").await.output();
            }
        });
    }
    callers.join_all().await;
    let took = began.elapsed();
    let after = resident_kib(pid);
    figure(&format!("{IMAGES} images called in {took:.1?}; router's memory {after} KiB"));
    assert!(after <= MEMORY, "{after} KiB");
    let page = router.json("/shards").await;
    let called = page["shards"].as_array().unwrap().iter().filter(|shard| shard["calls"] != 0).count();
    figure(&format!("{called} of {RUNNERS} runners were called"));
    assert_eq!(called, RUNNERS);
}
