//! Faults between runners and the API server: each fault alone, and all faults together.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use porch_fn_tests::client::Answer;
use porch_fn_tests::cluster::Fault::{
    Conflict, CutWatch, EndWatch, ExpireWatch, LoseAnswer, LoseConnection, RefuseWatch, ServerError, Slow,
    StallWatch, TooManyRequests,
};
use porch_fn_tests::cluster::{Cluster, RequestKind, Rule};
use porch_fn_tests::process::{PATIENCE, figure};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::alone::faults::{ProxiedRunners, call};
use crate::rig::{INPUT, alive};

/// The minimum lifetime of an unused pod on Kubernetes: four times the allowed clock difference.
const LIFETIME: Duration = Duration::from_mins(2);
/// An unused pod is deleted within this time, even during faults.
const COLLECTED_WITHIN: Duration = Duration::from_mins(4);
/// With this delay, the API server answers after the runner's timeout.
const TOO_LATE: Duration = Duration::from_secs(12);
/// With these faults no watch works. A runner without a watch does not collect pods, because it
/// cannot know whether other runners use them.
const WITHOUT_WATCH: [&str; 3] = ["watches are cut", "watches expire", "watches are refused"];

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn unused_pods_are_collected_during_every_fault() {
    let cluster = Cluster::connect().await;
    let tests =
        faults().into_iter().zip(1..).map(|((what, rules), seed)| collected(&cluster, what, rules, seed));
    // These tests mostly wait, so they run together.
    join_all(tests).await;
}

async fn collected(cluster: &Cluster, what: &str, rules: Vec<Rule>, seed: u64) {
    let image = cluster.function_image();
    let proxied = ProxiedRunners::start(rules, seed, 1, &[&image], &["--pod-ttl=1s"]).await;
    proxied.call_ok(what, 0, &image).await;
    let start = Instant::now();
    if WITHOUT_WATCH.contains(&what) {
        sleep(LIFETIME * 5 / 4).await;
        assert_eq!(proxied.setup.namespace.pods().await.len(), 1, "{what}: collected");
        proxied.proxy.set([]);
    }
    proxied.setup.namespace.wait_empty::<Pod>(COLLECTED_WITHIN).await;
    let took = start.elapsed();
    proxied.setup.namespace.wait_empty::<Service>(PATIENCE).await;
    figure(&format!("{what}: an unused pod was collected after {took:.0?}"));
    proxied.call_ok(what, 0, &image).await;
    proxied.proxy.set([]);
    proxied.wait_settled(what).await;
    proxied.assert_pod_limit(what, 1, &[&image]);
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn all_faults_together_fail_no_call() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("PORCH_FN_TEST_SEED").map_or(now.as_secs(), |seed| seed.parse().unwrap());
    all_faults(Duration::from_mins(1), seed).await;
}

/// The rules of each fault.
fn faults() -> Vec<(&'static str, Vec<Rule>)> {
    let half = |fault| vec![Rule::new(fault).chance(0.5)];
    let always = |fault| vec![Rule::new(fault)];
    vec![
        ("watches end", half(EndWatch)),
        ("watches are cut", always(CutWatch)),
        ("watches are stalled", always(StallWatch)),
        ("watches expire", always(ExpireWatch)),
        ("watches are refused", always(RefuseWatch)),
        ("writes conflict", half(Conflict)),
        ("too many requests", half(TooManyRequests)),
        ("server errors", half(ServerError)),
        ("slow answers", always(Slow(Duration::from_secs(1)))),
        ("late writes", vec![Rule::new(Slow(TOO_LATE)).only(|kind| kind == RequestKind::Write).times(3)]),
        ("answers are lost", always(LoseAnswer)),
        ("connections are lost", always(LoseConnection)),
    ]
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn each_single_fault_fails_no_call_and_leaves_nothing_behind() {
    let cluster = Cluster::connect().await;
    // After this call, the node has the images.
    let image = cluster.function_image();
    let first = ProxiedRunners::start(Vec::new(), 0, 1, &[&image], &[]).await;
    first.call_ok("without a fault", 0, &image).await;
    drop(first);
    let tests =
        faults().into_iter().zip(1..).map(|((what, rules), seed)| single_fault(&cluster, what, rules, seed));
    stream::iter(tests).buffer_unordered(4).collect::<Vec<()>>().await;
}

/// Makes first calls and warm calls, deletes a pod, and calls a function whose pod fails.
async fn single_fault(cluster: &Cluster, what: &str, rules: Vec<Rule>, seed: u64) {
    let (image, bogus) = (cluster.function_image(), format!("{}/no/such-image:v1", cluster.registry()));
    let proxied = ProxiedRunners::start(rules, seed, 1, &[&image, &bogus], &[]).await;

    let firsts = join_all((0..8).map(|_| proxied.call_ok(what, 0, &image))).await;
    let warm = join_all((0..20).map(|_| proxied.call_ok(what, 0, &image))).await;
    let pod = proxied.setup.namespace.pods().await.remove(0);
    proxied.delete(&pod, &DeleteParams::default()).await;
    proxied.setup.wait_gone(&pod).await;
    let after = proxied.call_ok(what, 0, &image).await;

    let (answer, refused) = proxied.call(0, &bogus).await;
    assert_ne!(answer.code, Code::Ok, "{what}");
    let collected = |pods: &[Pod]| (pods.len() == 1).then_some(());
    proxied.setup.namespace.wait_until("the failed pod is collected", collected).await;

    let longest = |took: &[Duration]| took.iter().max().copied().unwrap_or_default();
    figure(&format!(
        "{what}: first calls {:.1?}, warm calls {:.0?}, after a delete {after:.1?}, an image that does not exist \
         {refused:.1?} ({:?}); {} requests, {} with a fault",
        longest(&firsts),
        longest(&warm),
        answer.code,
        proxied.proxy.outcomes().len(),
        proxied.proxy.outcomes().iter().flatten().count(),
    ));
    assert!(proxied.proxy.outcomes().iter().any(Option::is_some), "{what}: no fault was injected");
    proxied.proxy.set([]);
    proxied.wait_settled(what).await;
    proxied.assert_pod_limit(what, 1, &[&image, &bogus]);
    assert_eq!(proxied.setup.namespace.pods().await.len(), 1, "{what}");
    proxied.call_ok(what, 0, &image).await;
}

/// Puts load on two runners while all faults happen at random and pods are deleted. Afterwards the
/// runners must recover.
async fn all_faults(time: Duration, seed: u64) {
    const FUNCTIONS: usize = 5;
    const LIMIT: usize = 2;
    let what = format!("all faults, seed {seed}");
    let cluster = Cluster::connect().await;
    let mut images = Vec::new();
    for number in 0..FUNCTIONS {
        images.push(cluster.function_named(&format!("mixed/function-{number}:v1")).await);
    }
    let images: Vec<_> = images.iter().map(String::as_str).collect();
    let limit = format!("--max-parallel-pods-per-function={LIMIT}");
    let proxied =
        ProxiedRunners::start(Vec::new(), seed, 2, &images, &[&limit, "--max-waitlist-length=1"]).await;
    let rare = [EndWatch, CutWatch, StallWatch, ExpireWatch, RefuseWatch, Slow(TOO_LATE)];
    let slow = Slow(Duration::from_millis(500));
    let frequent = [Conflict, TooManyRequests, ServerError, slow, LoseAnswer, LoseConnection];
    let rare = rare.map(|fault| Rule::new(fault).chance(0.03));
    proxied.proxy.set(rare.into_iter().chain(frequent.map(|fault| Rule::new(fault).chance(0.07))));

    let end = Instant::now() + time;
    let load = join_all((0..12).map(|caller| call_until(&proxied, caller, &images, end)));
    let (calls, deleted) = tokio::join!(load, delete_pods(&proxied, end));
    let mut codes = BTreeMap::<String, usize>::new();
    let mut slowest = Duration::ZERO;
    for (answer, took) in calls.into_iter().flatten() {
        slowest = slowest.max(took);
        let text = if answer.code == Code::Ok { String::new() } else { format!(": {}", answer.message) };
        *codes.entry(format!("{:?}{text}", answer.code)).or_default() += 1;
    }
    let outcomes = proxied.proxy.outcomes();
    figure(&format!(
        "{what}: {time:?}, {deleted} pods deleted, {} requests, {} with a fault; calls {codes:?}, slowest {slowest:.1?}",
        outcomes.len(),
        outcomes.iter().flatten().count()
    ));
    assert!(codes.keys().all(|code| code == "Ok"), "{what}: {codes:#?}");

    proxied.proxy.set([]);
    for runner in 0..proxied.runners.len() {
        join_all(images.iter().map(|image| proxied.call_ok(&what, runner, image))).await;
    }
    proxied.wait_settled(&what).await;
    proxied.assert_pod_limit(&what, LIMIT, &images);
    for runner in 0..proxied.runners.len() {
        for image in &images {
            proxied.call_ok(&what, runner, image).await;
        }
    }
}

/// One caller, which makes one call after the other until `end`.
async fn call_until(
    proxied: &ProxiedRunners,
    caller: usize,
    images: &[&str],
    end: Instant,
) -> Vec<(Answer, Duration)> {
    let mut answers = Vec::new();
    let client = &proxied.clients[caller % proxied.clients.len()];
    for number in 0.. {
        if Instant::now() > end {
            break;
        }
        let image = images[(caller + number) % images.len()];
        let input = format!("{INPUT}# test-sleep-ms: 50, caller {caller}, call {number}\n");
        let (answer, took) = call(client, image, &input).await;
        assert!(
            answer.code != Code::Ok || answer.resource_list == input,
            "the answer belongs to another call"
        );
        answers.push((answer, took));
    }
    answers
}

/// Deletes a pod every 2 s until `end`, and returns the number of deleted pods.
async fn delete_pods(proxied: &ProxiedRunners, end: Instant) -> usize {
    let mut deleted = 0;
    while Instant::now() < end {
        sleep(Duration::from_secs(2)).await;
        let pods = proxied.setup.namespace.pods().await;
        let alive: Vec<_> = pods.iter().filter(|pod| alive(pod)).collect();
        if !alive.is_empty() {
            proxied.delete(alive[deleted * 7 % alive.len()], &DeleteParams::default()).await;
            deleted += 1;
        }
    }
    deleted
}
