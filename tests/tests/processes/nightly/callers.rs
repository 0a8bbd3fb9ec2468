//! Thousands of callers occupy a router's resources without using them. The tests measure the
//! effect on other callers.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::Builder;
use porch_fn_grpc::listen::allow_open_files;
use porch_fn_proto::PREFIX_LEN;
use porch_fn_tests::caller::{RawCaller, framed};
use porch_fn_tests::load::{Load, Report};
use porch_fn_tests::process::{Sandbox, Server, figure, try_get};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

const CALLERS: usize = 16;
const BASELINE: Duration = Duration::from_secs(20);
const ATTACK: Duration = Duration::from_mins(1);
/// The number of streams that send only headers, and the number of their connections.
const HEADERS_ONLY: usize = 20_000;
const CONNECTIONS: usize = 4;
/// Calls that announce a message of one mebibyte and send one byte of it each second.
const SLOW: usize = 300;
/// Callers that never read their answer of one mebibyte.
const NON_READING: usize = 100;
const MEBIBYTE: usize = 1024 * 1024;
/// Connections to the admin port that send no byte and are replaced every five seconds.
const SILENT: usize = 1000;
const RENEWED: Duration = Duration::from_secs(5);
const MAX_PROBE_DURATION: Duration = Duration::from_secs(1);

struct Setup {
    _sandbox: Sandbox,
    images: Vec<String>,
    _runner: Server,
    router: Server,
}

impl Setup {
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let images: Vec<_> = (0..20).map(|number| format!("example.com/echo-{number}:v1")).collect();
        let runner = sandbox.runner(sandbox.executables(&[(&images.join(","), "exec cat")])).await;
        let router = sandbox.router(&[&runner], &[]).await;
        Self { _sandbox: sandbox, images, _runner: runner, router }
    }

    async fn load(&self, time: Duration) -> Report {
        let load = Load::start(self.router.address(), CALLERS, &self.images);
        sleep(time).await;
        load.stop().await
    }

    /// Resident memory of the router in MiB.
    fn memory(&self) -> u64 {
        self.router.usage().resident / 1024
    }
}

async fn headers_only(router: SocketAddr) {
    let caller = RawCaller::connect(router).await;
    let mut calls = JoinSet::new();
    loop {
        while calls.len() < HEADERS_ONLY / CONNECTIONS {
            let call = caller.begin(caller.head()).await;
            calls.spawn(async move { drop(call.try_answer().await) });
        }
        let _ = calls.join_next().await;
    }
}

async fn slow_sender(router: SocketAddr, image: String) {
    let caller = RawCaller::connect(router).await;
    let whole = framed(&image, vec![b'#'; MEBIBYTE]);
    loop {
        let mut call = caller.begin(caller.head()).await;
        call.send(whole.slice(..PREFIX_LEN), false);
        let bytes = async {
            for at in PREFIX_LEN.. {
                sleep(Duration::from_secs(1)).await;
                if call.try_send(whole.slice(at..=at)).is_err() {
                    return;
                }
            }
        };
        bytes.await;
    }
}

/// A caller that never reads its answer. It keeps HTTP/2's small initial window.
async fn non_reading_caller(router: SocketAddr, image: String) {
    let package = format!("kind: ResourceList\n{}\n", "#".repeat(MEBIBYTE));
    let body = framed(&image, package);
    loop {
        let Ok(stream) = TcpStream::connect(router).await else { continue };
        let Ok((sender, connection)) = Builder::new().handshake::<_, Bytes>(stream).await else {
            continue;
        };
        let connection = tokio::spawn(connection);
        let caller = RawCaller::connect(router).await;
        let Ok(mut sender) = sender.ready().await else { continue };
        let (answer, mut stream) = sender.send_request(caller.head(), false).unwrap();
        let _ = stream.send_data(body.clone(), true);
        if let Ok(answer) = answer.await {
            let mut answer = answer.into_body();
            // Reads until the router resets the stream, but never enlarges the HTTP/2 window.
            while let Some(Ok(_)) = answer.data().await {}
        }
        connection.abort();
    }
}

async fn silent_sockets(admin: SocketAddr) {
    let mut ticks = interval(RENEWED);
    let mut sockets = Vec::new();
    loop {
        ticks.tick().await;
        sockets.clear();
        for _ in 0..SILENT {
            sockets.extend(TcpStream::connect(admin).await);
        }
    }
}

/// Sends probes until `time` is over. Returns the number of probes and the longest duration.
async fn probes(admin: SocketAddr, time: Duration) -> (usize, Duration) {
    let (end, mut slowest, mut count) = (Instant::now() + time, Duration::ZERO, 0);
    let mut ticks = interval(Duration::from_millis(200));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        ticks.tick().await;
        for path in ["/healthz", "/readyz"] {
            let began = Instant::now();
            let answer = timeout(MAX_PROBE_DURATION * 5, try_get(admin, path)).await.expect("an answer");
            assert_eq!(answer.expect("an answer").0, 200, "{path}");
            slowest = slowest.max(began.elapsed());
            count += 1;
        }
    }
    (count, slowest)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes; tests/run nightly runs it"]
async fn slow_and_idle_callers_do_not_slow_down_others() {
    allow_open_files();
    let setup = Setup::start().await;
    let router = setup.router.address();
    setup.load(Duration::from_secs(5)).await.assert_all_succeeded();
    let (baseline, before) = (setup.load(BASELINE).await, setup.memory());
    baseline.assert_all_succeeded();

    let mut attackers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        attackers.spawn(headers_only(router));
    }
    for number in 0..SLOW {
        attackers.spawn(slow_sender(router, setup.images[number % setup.images.len()].clone()));
    }
    for number in 0..NON_READING {
        attackers.spawn(non_reading_caller(router, setup.images[number % setup.images.len()].clone()));
    }
    let watch = async {
        let (mut most, end) = (0, Instant::now() + ATTACK);
        while Instant::now() < end {
            most = most.max(setup.memory());
            sleep(Duration::from_secs(1)).await;
        }
        most
    };
    let (attacked, most) = tokio::join!(setup.load(ATTACK), watch);
    let slow = setup.router.metric("porch_fn_router_inflight_refused_total{reason=\"slow\"}").await;
    attackers.shutdown().await;
    let p99 = |report: &Report| report.latencies(|_| true).percentile(0.99);
    let ratio = p99(&attacked).as_secs_f64() / p99(&baseline).as_secs_f64();
    figure(&format!("without such callers: {baseline}; {before} MiB"));
    figure(&format!(
        "{HEADERS_ONLY} streams that send only headers, {SLOW} that send a byte a second, {NON_READING} callers that never read, for \
         {ATTACK:?}: {attacked}; p99 {ratio:.2} times as long; at most {most} MiB; {} slow calls evicted",
        slow.unwrap_or_default()
    ));
    attacked.assert_all_succeeded();
    assert!(ratio <= 2.0, "{ratio}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes; tests/run nightly runs it"]
async fn probes_are_answered_despite_a_thousand_silent_connections() {
    allow_open_files();
    let setup = Setup::start().await;
    let mut sockets = JoinSet::new();
    sockets.spawn(silent_sockets(setup.router.admin()));
    let (count, slowest) = probes(setup.router.admin(), ATTACK / 2).await;
    sockets.shutdown().await;
    figure(&format!(
        "{SILENT} silent sockets, renewed every {RENEWED:?}: {count} probes, slowest {slowest:.1?}"
    ));
    assert!(slowest <= MAX_PROBE_DURATION, "{slowest:?}");
}
