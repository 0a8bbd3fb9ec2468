//! Several runners on one set of pods, at once and one after the other: the API server is their only arbiter.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use super::calls::{INPUT, alive, births, count, until_count};

/// Three runners that know each other, each on an address of its own. The network is the cluster's, so ports are free.
async fn three_runners(
    namespace: &Namespace,
    sandbox: &Sandbox,
    images: &[&str],
    more: &[&str],
) -> Vec<Server> {
    let addresses = ["127.0.7.1", "127.0.7.2", "127.0.7.3"];
    let peers = addresses.map(|address| format!("{address}:9445")).join(",");
    let start = async |address: &str| {
        let own = [
            format!("--address={address}"),
            "--port=9445".into(),
            format!("--peers=static:///{peers}"),
            format!("--shard-address={address}:9445"),
        ];
        let flags: Vec<_> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        namespace.runner(sandbox, images, &flags).await
    };
    join_all(addresses.map(start)).await
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn first_calls_on_three_runners_at_once_share_the_limit_of_pods() {
    const CALLS: usize = 100;
    const LIMIT: usize = 2;
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    let image = cluster.function_image();
    let limit = format!("--max-parallel-pods-per-function={LIMIT}");
    let runners = three_runners(&namespace, &sandbox, &[&image], &[&limit]).await;
    let record = namespace.record::<Pod>().await;

    let start = Instant::now();
    let calls = runners.iter().flat_map(|runner| {
        let client = std::sync::Arc::new(Client::new(runner.address()));
        let image = &image;
        (0..CALLS).map(move |number| {
            let client = std::sync::Arc::clone(&client);
            async move {
                let input = format!("{INPUT}# call {number}, test-sleep-ms: 20\n");
                assert_eq!(client.call(image, input.clone()).await.output(), &input);
            }
        })
    });
    let answered = join_all(calls).await.len();
    figure(&format!("{answered} first calls on 3 runners: {:.1?}", start.elapsed()));
    assert_eq!(answered, 3 * CALLS);

    assert_eq!(record.most_at_once(alive), LIMIT);
    assert_eq!(births(&record).len(), LIMIT, "none was made in vain");
    assert_eq!(namespace.pods().await.iter().filter(|pod| alive(pod)).count(), LIMIT);
    for runner in &runners {
        for field in ["terminating", "in_flight", "waiting"] {
            assert_eq!(count(runner, &image, field).await, 0, "{field}");
        }
        // Each runner finds out for itself, and one pod may have answered all its calls.
        until_count(runner, &image, "ready", LIMIT as u64).await;
        assert_eq!(count(runner, &image, "starting").await, 0);
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_killed_runners_pods_serve_the_next_at_once_by_service() {
    restart("service").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_killed_runners_pods_serve_the_next_at_once_by_address() {
    restart("pod-ip").await;
}

/// Kills a runner that has warm pods and starts another in its place, up to `RESTARTS` times: what the node does besides
/// can make a call late, but not that of the same image in each of them. A pod is never made.
async fn restart(connect: &str) {
    const FUNCTIONS: usize = 50;
    const RESTARTS: usize = 5;
    const BOUND: Duration = Duration::from_millis(50);
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    let names = (0..FUNCTIONS).map(|number| format!("kept/function-{number}:v1"));
    let pushed = names.map(|name| {
        let cluster = &cluster;
        async move { cluster.function_named(&name).await }
    });
    let images: Vec<String> = stream::iter(pushed).buffered(4).collect().await;
    let listed: Vec<_> = images.iter().map(String::as_str).collect();
    let connect_flag = format!("--pod-connect={connect}");
    // Two cores start them, one after the other.
    let flags = [connect_flag.as_str(), "--pod-ready-timeout=5m"];

    let mut runner = namespace.runner(&sandbox, &listed, &flags).await;
    let client = Client::new(runner.address());
    let start = Instant::now();
    let first_calls = images.iter().map(|image| client.call(image, INPUT));
    let answers: Vec<_> = stream::iter(first_calls).buffer_unordered(8).collect().await;
    assert!(answers.iter().all(|answer| answer.output() == INPUT));
    figure(&format!("{FUNCTIONS} pods by {connect} made in {:.1?}", start.elapsed()));

    let record = namespace.record::<Pod>().await;
    let mut best = vec![Duration::MAX; FUNCTIONS];
    for _ in 0..RESTARTS {
        runner.signal(Signal::KILL);
        runner.ended().await;
        let start = Instant::now();
        runner = namespace.runner(&sandbox, &listed, &flags).await;
        adopted(&runner, FUNCTIONS).await;
        figure(&format!(
            "{FUNCTIONS} pods by {connect} adopted {:.0?} after the new runner's start",
            start.elapsed()
        ));
        let took = first_calls_of(&runner, &images).await;
        best = best.into_iter().zip(&took).map(|(best, took)| best.min(*took)).collect();
        let mut sorted = took;
        sorted.sort();
        figure(&format!(
            "first calls by {connect} after the restart: median {:.1?}, slowest {:.1?}, {} of {FUNCTIONS} below {BOUND:?}",
            sorted[FUNCTIONS / 2],
            sorted[FUNCTIONS - 1],
            sorted.iter().filter(|took| **took < BOUND).count()
        ));
        if best.iter().all(|best| *best < BOUND) {
            break;
        }
    }
    assert!(
        best.iter().all(|best| *best < BOUND),
        "an image's was late after each of {RESTARTS} restarts: {best:?}"
    );
    assert_eq!(births(&record).len(), FUNCTIONS, "none was made");
    assert_eq!(record.most_at_once(alive), FUNCTIONS);
    assert_eq!(namespace.pods().await.iter().filter(|pod| alive(pod)).count(), FUNCTIONS);
    // So many pods take longer than a test that ends leaves them.
    namespace.finish().await;
}

/// Waits until a runner has that many pods that are ready.
async fn adopted(runner: &Server, pods: usize) {
    eventually("the runner has all pods", async || {
        let page = runner.json("/pods").await;
        let ready = page.as_array().unwrap().iter().map(|function| function["ready"].as_u64().unwrap());
        (ready.sum::<u64>() == pods as u64).then_some(())
    })
    .await;
}

/// How long a runner's first call of each image takes, one after the other.
async fn first_calls_of(runner: &Server, images: &[String]) -> Vec<Duration> {
    let client = Client::new(runner.address());
    let mut took = Vec::new();
    for image in images {
        let start = Instant::now();
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
        took.push(start.elapsed());
    }
    took
}

/// Four functions and a quota of two pods: the runners learn of it from refusals, and ask each other for places.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn functions_take_turns_in_a_quota_of_pods() {
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    let quota = json!({"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}});
    namespace.make::<ResourceQuota>(quota).await;
    let in_force = |quotas: &[ResourceQuota]| {
        let hard = quotas.first()?.status.as_ref()?.hard.as_ref()?;
        hard.contains_key("pods").then_some(())
    };
    namespace.until("the quota is in force", in_force).await;
    let mut images = Vec::new();
    for function in 0..4 {
        images.push(cluster.function_named(&format!("turns/function-{function}:v1")).await);
    }
    let known: Vec<_> = images.iter().map(String::as_str).collect();
    let runners = three_runners(&namespace, &sandbox, &known, &["--scan-interval=2s"]).await;
    let clients: Vec<_> = runners.iter().map(|runner| Client::new(runner.address())).collect();
    let mut slowest = Duration::ZERO;
    for round in 0..2 {
        for (number, image) in images.iter().enumerate() {
            let begin = Instant::now();
            let client = &clients[(round + number) % clients.len()];
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
            slowest = slowest.max(begin.elapsed());
        }
    }
    figure(&format!(
        "4 functions by turns in a quota of 2 pods, on 3 runners: 8 calls, 0 failed, the slowest {slowest:.1?}"
    ));
}
