//! Measures how soon the first call of a function without a pod is answered, from the call and from
//! when the new pod accepts connections. Only the second time has a bound: it excludes scheduling and
//! starting containers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::Namespace;
use porch_fn_tests::process::{PATIENCE, figure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

use crate::rig::{CONNECTS, INPUT, Runner, Setup, wait_count};

const RUNS: usize = 10;
/// The node's address, and a free port there.
const NODE: &str = "10.250.0.1";
const ANNOUNCE_PORT: u16 = 19_445;
/// A router sends no hint for an image that was called within this time.
const WARM: Duration = Duration::from_secs(5);
/// The kubelet looks at its containers once per second, and reports a pod's address only then. The
/// deletion before a call ends with such a look, so each call waits this much longer than the one
/// before it: the calls cover the second evenly.
const STAGGER: Duration = Duration::from_millis(100);
/// The largest allowed median of the times from the pod's first connection to the answer.
const BOUND: Duration = Duration::from_millis(150);
/// The largest allowed time of a single run, on a busy node. The slowest run is ignored.
const BOUND_ON_A_BUSY_NODE: Duration = Duration::from_millis(500);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_first_call_is_answered_soon_after_the_pod_accepts_connections() {
    for connect in CONNECTS {
        measure(connect, &[&format!("--pod-connect={connect}")]).await;
    }
}

/// The runner listens where pods reach it.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_that_announces_itself_is_used_before_the_api_server_reports_its_address() {
    let own = format!("{NODE}:{ANNOUNCE_PORT}");
    let (address, port) = (format!("--address={NODE}"), format!("--port={ANNOUNCE_PORT}"));
    let own = format!("--shard-address={own}");
    let (_setup, runner) = measure("announcement", &["--pod-announce", &address, &port, &own]).await;
    let series = "porch_fn_runner_pod_start_phase_seconds_count{phase=\"announce\"}";
    let announced = runner.server.metric(series).await;
    figure(&format!("cold starts by announcement: {announced:?} of {} pods announced first", RUNS + 1));
    assert!(announced >= Some(1), "no pod announced itself first");
}

/// With --predict, the first call of a known pipeline starts the pods of all its functions. How long
/// that takes depends on what else the node does, so the order of events is asserted, and not times.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_known_cold_pipeline_starts_all_its_pods_at_once() {
    let setup = Setup::new().await;
    let mut images = Vec::new();
    for name in ["pipeline-a:v1", "pipeline-b:v1", "pipeline-c:v1"] {
        images.push(setup.cluster.function_named(name).await);
    }
    let names: Vec<_> = images.iter().map(String::as_str).collect();
    let runner = setup.runner_of(&names, &[]).await;
    for (predict, round) in [(true, "with --predict"), (false, "without")] {
        let router = setup.sandbox.router(&[&runner.server], &[&format!("--predict={predict}")]).await;
        let client = Client::new(router.address());
        let mut took = Vec::new();
        for _ in 0..=RUNS / 2 {
            let began = Instant::now();
            for (number, image) in images.iter().enumerate() {
                assert_eq!(client.call(image, INPUT).await.output(), INPUT);
                // The first call of the pipeline is the one that the router learns from.
                let expected = if predict && !took.is_empty() { images.len() } else { number + 1 };
                assert_eq!(setup.pods().await.len(), expected, "pods at the answer {number}, after {took:?}");
            }
            took.push(began.elapsed());
            let called = Instant::now();
            for pod in setup.pods().await {
                setup.delete(&pod, &DeleteParams::default()).await;
            }
            setup.namespace.wait_empty::<Pod>(PATIENCE).await;
            setup.namespace.wait_empty::<Service>(PATIENCE).await;
            for (image, field) in images.iter().flat_map(|image| [(image, "ready"), (image, "terminating")]) {
                wait_count(&runner.server, image, field, 0).await;
            }
            sleep_until(called + WARM + Duration::from_secs(1)).await;
        }
        let first = took.remove(0);
        took.sort();
        figure(&format!("cold pipelines of three functions {round}: first {first:.2?}, then {took:.2?}"));
    }
}

/// Starts a runner with these flags, and calls its function without a pod, again and again.
async fn measure(way: &str, flags: &[&str]) -> (Setup, Runner) {
    let setup = Setup::new().await;
    let runner = setup.runner(flags).await;
    // After this call, the node has the images.
    runner.call_ok().await;
    let (mut whole, mut late) = (Vec::new(), Vec::new());
    let mut pause = Duration::ZERO;
    for _ in 0..RUNS {
        setup.delete(&setup.pod().await, &DeleteParams::default()).await;
        setup.namespace.wait_empty::<Pod>(PATIENCE).await;
        setup.namespace.wait_empty::<Service>(PATIENCE).await;
        for field in ["ready", "terminating"] {
            runner.wait_count(field, 0).await;
        }
        sleep(pause).await;
        pause += STAGGER;
        let began = Instant::now();
        let call = async {
            let answer = runner.call(INPUT).await;
            (answer, Instant::now())
        };
        let ((answer, answered), listening) = tokio::join!(call, wait_listening(&setup.namespace));
        assert_eq!(answer.output(), INPUT);
        whole.push(answered - began);
        late.push(answered.saturating_duration_since(listening));
    }
    whole.sort();
    late.sort();
    figure(&format!("cold starts by {way}, whole calls: {whole:.2?}"));
    figure(&format!("cold starts by {way}, from when the pod accepts connections: {late:.1?}"));
    assert!(late[RUNS / 2] <= BOUND, "above {BOUND:?}: {late:?}");
    assert!(late[RUNS - 2] <= BOUND_ON_A_BUSY_NODE, "two above {BOUND_ON_A_BUSY_NODE:?}: {late:?}");
    (setup, runner)
}

/// Waits until the pod's wrapper-server accepts a connection, and returns the time.
async fn wait_listening(namespace: &Namespace) -> Instant {
    let ip = |pods: &[Pod]| pods.first()?.status.as_ref()?.pod_ip.as_ref()?.parse::<IpAddr>().ok();
    let address = SocketAddr::new(namespace.wait_until("the pod has an IP", ip).await, 9446);
    while TcpStream::connect(address).await.is_err() {
        sleep(Duration::from_millis(2)).await;
    }
    Instant::now()
}
