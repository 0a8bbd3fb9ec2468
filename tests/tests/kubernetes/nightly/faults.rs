//! Faults between runners and the API server: each one alone, and all of them together.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::client::Answer;
use porch_fn_tests::cluster::{Asked, Cluster, Fault, Rule};
use porch_fn_tests::process::figure;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::alone::faults::{Stand, call};
use crate::rig::{INPUT, alive};

/// The minimum lifetime of an unused pod on Kubernetes: four times the allowed clock difference.
const LIFETIME: Duration = Duration::from_mins(2);
/// An unused pod is deleted within this time, whatever fails.
const COLLECTED_WITHIN: Duration = Duration::from_mins(4);
/// With these faults no watch works. A runner that cannot see how other runners use a pod does not
/// collect it.
const BLIND: [&str; 3] = ["watches are cut", "watches expire", "watches are refused"];

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn pods_are_collected_whatever_fails() {
    let cluster = Cluster::connect().await;
    let tests =
        faults().into_iter().zip(1..).map(|((what, rules), seed)| collected(&cluster, what, rules, seed));
    // These tests mostly wait, so they run together.
    join_all(tests).await;
}

async fn collected(cluster: &Cluster, what: &str, rules: Vec<Rule>, seed: u64) {
    let image = cluster.function_image();
    let stand = Stand::start(rules, seed, 1, &[&image], &["--pod-ttl=1s"]).await;
    stand.succeeds(what, 0, &image).await;
    let start = Instant::now();
    if BLIND.contains(&what) {
        sleep(LIFETIME * 5 / 4).await;
        assert_eq!(stand.bench.namespace.pods().await.len(), 1, "{what}: collected");
        stand.proxy.set([]);
    }
    let none = |pods: &[Pod]| pods.is_empty().then_some(());
    stand.bench.namespace.until_within(COLLECTED_WITHIN, "the pod is collected", none).await;
    let took = start.elapsed();
    let none = |services: &[Service]| services.is_empty().then_some(());
    stand.bench.namespace.until("its Service is collected", none).await;
    figure(&format!("{what}: an unused pod was collected after {took:.0?}"));
    stand.succeeds(what, 0, &image).await;
    stand.proxy.set([]);
    stand.settles(what).await;
    stand.never_more_than(what, 1, &[&image]);
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn all_faults_together_lose_no_call() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("PORCH_FN_TEST_SEED").map_or(now.as_secs(), |seed| seed.parse().unwrap());
    mix(Duration::from_mins(1), seed).await;
}

/// Each fault as a set of rules of its own.
fn faults() -> Vec<(&'static str, Vec<Rule>)> {
    let half = |fault| vec![Rule::new(fault).chance(0.5)];
    let always = |fault| vec![Rule::new(fault)];
    vec![
        ("watches end", half(Fault::EndWatch)),
        ("watches are cut", always(Fault::CutWatch)),
        ("watches are stalled", always(Fault::StallWatch)),
        ("watches expire", always(Fault::ExpireWatch)),
        ("watches are refused", always(Fault::RefuseWatch)),
        ("writes conflict", half(Fault::Conflict)),
        ("too many requests", half(Fault::TooManyRequests)),
        ("server errors", half(Fault::ServerError)),
        ("slow answers", always(Fault::Slow(Duration::from_secs(1)))),
        // The API server answers after the runner has given up.
        (
            "late writes",
            vec![
                Rule::new(Fault::Slow(Duration::from_secs(12))).only(|asked| asked == Asked::Write).times(3),
            ],
        ),
        ("answers are lost", always(Fault::LoseAnswer)),
        ("connections are lost", always(Fault::LoseConnection)),
    ]
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn each_fault_alone_costs_no_call_and_leaves_nothing_behind() {
    let cluster = Cluster::connect().await;
    // After this call, the images are on the node.
    let image = cluster.function_image();
    let first = Stand::start(Vec::new(), 0, 1, &[&image], &[]).await;
    first.succeeds("without a fault", 0, &image).await;
    drop(first);
    let tests = faults().into_iter().zip(1..).map(|((what, rules), seed)| alone(&cluster, what, rules, seed));
    stream::iter(tests).buffer_unordered(4).collect::<Vec<()>>().await;
}

/// Makes first calls and warm calls, deletes a pod, and calls a function whose pod fails and is
/// collected.
async fn alone(cluster: &Cluster, what: &str, rules: Vec<Rule>, seed: u64) {
    let (image, bogus) = (cluster.function_image(), format!("{}/no/such-image:v1", cluster.registry()));
    let stand = Stand::start(rules, seed, 1, &[&image, &bogus], &[]).await;

    let firsts = join_all((0..8).map(|_| stand.succeeds(what, 0, &image))).await;
    let warm = join_all((0..20).map(|_| stand.succeeds(what, 0, &image))).await;
    let pod = stand.bench.namespace.pods().await.remove(0);
    stand.delete(&pod, &DeleteParams::default()).await;
    let there = |pods: &[Pod]| pods.iter().all(|other| other.uid() != pod.uid()).then_some(());
    stand.bench.namespace.until("the pod is gone", there).await;
    let after = stand.succeeds(what, 0, &image).await;

    let (answer, refused) = stand.call(0, &bogus).await;
    assert_ne!(answer.code, Code::Ok, "{what}");
    let collected = |pods: &[Pod]| (pods.len() == 1).then_some(());
    stand.bench.namespace.until("the failed pod is collected", collected).await;

    let longest = |took: &[Duration]| took.iter().max().copied().unwrap_or_default();
    figure(&format!(
        "{what}: first calls {:.1?}, warm calls {:.0?}, after a delete {after:.1?}, an image that does not exist \
         {refused:.1?} ({:?}); {} requests, {} with a fault",
        longest(&firsts),
        longest(&warm),
        answer.code,
        stand.proxy.passed().len(),
        stand.proxy.passed().iter().flatten().count(),
    ));
    assert!(stand.proxy.passed().iter().any(Option::is_some), "{what}: nothing was done");
    stand.proxy.set([]);
    stand.settles(what).await;
    stand.never_more_than(what, 1, &[&image, &bogus]);
    assert_eq!(stand.bench.namespace.pods().await.len(), 1, "{what}");
    stand.succeeds(what, 0, &image).await;
}

/// Puts load on two runners while all faults happen at random and pods are deleted. Afterwards the
/// runners must recover.
async fn mix(lasting: Duration, seed: u64) {
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
    let stand = Stand::start(Vec::new(), seed, 2, &images, &[&limit, "--max-waitlist-length=1"]).await;
    let seldom = [
        Fault::EndWatch,
        Fault::CutWatch,
        Fault::StallWatch,
        Fault::ExpireWatch,
        Fault::RefuseWatch,
        Fault::Slow(Duration::from_secs(12)),
    ];
    let often = [
        Fault::Conflict,
        Fault::TooManyRequests,
        Fault::ServerError,
        Fault::Slow(Duration::from_millis(500)),
        Fault::LoseAnswer,
        Fault::LoseConnection,
    ];
    let seldom = seldom.map(|fault| Rule::new(fault).chance(0.03));
    stand.proxy.set(seldom.into_iter().chain(often.map(|fault| Rule::new(fault).chance(0.07))));

    let end = Instant::now() + lasting;
    let load = join_all((0..12).map(|caller| work(&stand, caller, &images, end)));
    let (calls, deleted) = tokio::join!(load, delete_pods(&stand, end));
    let mut codes = BTreeMap::<String, usize>::new();
    let mut slowest = Duration::ZERO;
    for (answer, took) in calls.into_iter().flatten() {
        slowest = slowest.max(took);
        let text = if answer.code == Code::Ok { String::new() } else { format!(": {}", answer.message) };
        *codes.entry(format!("{:?}{text}", answer.code)).or_default() += 1;
    }
    let passed = stand.proxy.passed();
    figure(&format!(
        "{what}: {lasting:?}, {deleted} pods deleted, {} requests, {} with a fault; calls {codes:?}, slowest {slowest:.1?}",
        passed.len(),
        passed.iter().flatten().count()
    ));
    assert!(codes.keys().all(|code| code == "Ok"), "{what}: {codes:#?}");

    stand.proxy.set([]);
    for runner in 0..stand.runners.len() {
        join_all(images.iter().map(|image| stand.succeeds(&what, runner, image))).await;
    }
    stand.settles(&what).await;
    stand.never_more_than(&what, LIMIT, &images);
    for runner in 0..stand.runners.len() {
        for image in &images {
            stand.succeeds(&what, runner, image).await;
        }
    }
}

/// One caller at a runner: it makes one call after the other until `end`.
async fn work(stand: &Stand, caller: usize, images: &[&str], end: Instant) -> Vec<(Answer, Duration)> {
    let mut answers = Vec::new();
    let client = &stand.clients[caller % stand.clients.len()];
    for number in 0.. {
        if Instant::now() > end {
            break;
        }
        let image = images[(caller + number) % images.len()];
        let input = format!("{INPUT}# test-sleep-ms: 50, caller {caller}, call {number}\n");
        let (answer, took) = call(client, image, &input).await;
        assert!(answer.code != Code::Ok || answer.resource_list == input, "another call's answer");
        answers.push((answer, took));
    }
    answers
}

/// Deletes a pod every few seconds until `end`, and returns how many.
async fn delete_pods(stand: &Stand, end: Instant) -> usize {
    let mut deleted = 0;
    while Instant::now() < end {
        sleep(Duration::from_secs(2)).await;
        let pods = stand.bench.namespace.pods().await;
        let alive: Vec<_> = pods.iter().filter(|pod| alive(pod)).collect();
        if !alive.is_empty() {
            stand.delete(alive[deleted * 7 % alive.len()], &DeleteParams::default()).await;
            deleted += 1;
        }
    }
    deleted
}
