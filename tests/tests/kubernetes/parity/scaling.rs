//! How many pods calls make, and what the file of `--pod-cache-config` changes about it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use porch_fn_tests::process::{eventually, figure, flag};
use serde_json::json;
use tokio::time::Instant;

use super::{Bench, RECLAIM_AFTER, is_ours, sleeping, uids};

/// How long until the pod may be collected.
fn lifetime(pod: &Pod) -> Duration {
    let until: Timestamp = pod.annotations()[RECLAIM_AFTER].parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Duration::from_millis(until.as_millisecond().try_into().unwrap()).saturating_sub(now)
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn four_calls_make_exactly_two_pods() {
    let bench = Bench::new().await;
    let record = bench.namespace.record::<Pod>().await;
    let runner = bench.runner(&["--max-waitlist-length=2", "--max-parallel-pods-per-function=2"]).await;
    let start = Instant::now();
    let calls = (0..4).map(|_| runner.call(sleeping(Duration::from_secs(3))));
    for answer in join_all(calls).await {
        answer.output();
    }
    figure(&format!("4 first calls of 3 s with a waitlist of 2, 2 pods at most: {:?}", start.elapsed()));
    assert_eq!((uids(&record).len(), record.most_at_once(is_ours)), (2, 2));

    // At the limit, however many more there are.
    let calls = (0..12).map(|_| runner.call(sleeping(Duration::from_millis(500))));
    for answer in join_all(calls).await {
        answer.output();
    }
    assert_eq!(uids(&record).len(), 2);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn three_calls_overlap_in_one_pod() {
    let bench = Bench::new().await;
    let record = bench.namespace.record::<Pod>().await;
    let runner = bench.runner(&[]).await;
    // They wait for the pod that the first of them asked for.
    tokio::join!(runner.succeeds(), runner.succeeds(), runner.succeeds());
    let start = Instant::now();
    let calls = join_all((0..3).map(|_| runner.call(sleeping(Duration::from_secs(6)))));
    let (answers, ()) = tokio::join!(calls, runner.counts("in_flight", 3));
    for answer in answers {
        answer.output();
    }
    figure(&format!("3 calls of 6 s on one warm pod: {:?}", start.elapsed()));
    assert!(start.elapsed() < Duration::from_secs(18), "one after the other they would take as long");
    assert_eq!(uids(&record).len(), 1);
    runner.counts("in_flight", 0).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_cache_file_decides_per_image() {
    let bench = Bench::new().await;
    let other = bench.cluster.function_named("parity/other:v1").await;
    let record = bench.namespace.record::<Pod>().await;
    let file = json!([{
        "name": bench.image, "timeToLive": "2h", "maxWaitlistLength": 1, "maxParallelPodsPerFunction": 3,
        "resources": {"requests": {"cpu": "3m", "memory": "9Mi"}, "limits": {"memory": "70Mi"}},
    }]);
    let file = flag("pod-cache-config", bench.sandbox.write("cache.yaml", file.to_string()));
    let more = [file.to_str().unwrap(), "--pod-ttl=1h"];
    let runner = bench.runner_of(&[&bench.image, &other], &more).await;
    // Warmed up, since the file names it.
    runner.counts("ready", 1).await;
    let calls = (0..8).map(|_| runner.call(sleeping(Duration::from_secs(2))));
    for answer in join_all(calls).await {
        answer.output();
    }
    eventually("three pods are made", async || (uids(&record).len() >= 3).then_some(())).await;
    let pods = bench.pods().await;
    assert_eq!((pods.len(), uids(&record).len()), (3, 3));
    for pod in &pods {
        let function = &pod.spec.as_ref().unwrap().containers.iter().find(|one| one.name == "function");
        let resources = function.unwrap().resources.as_ref().unwrap();
        assert_eq!(resources.limits.as_ref().unwrap()["memory"].0, "70Mi");
        assert_eq!(resources.requests.as_ref().unwrap()["cpu"].0, "3m");
        let minutes = lifetime(pod).as_secs() / 60;
        assert!((115..=120).contains(&minutes), "{minutes} min");
    }

    // For all others the flags hold: one pod.
    let calls = (0..8).map(|_| runner.client.call(&other, sleeping(Duration::from_millis(500))));
    for answer in join_all(calls).await {
        answer.output();
    }
    let known: Vec<_> = pods.iter().map(ResourceExt::uid).collect();
    let others: Vec<_> = bench.pods().await.into_iter().filter(|pod| !known.contains(&pod.uid())).collect();
    assert_eq!(others.len(), 1);
    let minutes = lifetime(&others[0]).as_secs() / 60;
    assert!((55..=60).contains(&minutes), "{minutes} min");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_map_of_times_to_live_is_read() {
    let bench = Bench::new().await;
    let file = bench.sandbox.write("cache.yaml", format!("{}: 3h\n", bench.image));
    let file = flag("pod-cache-config", file);
    let runner = bench.runner(&[file.to_str().unwrap(), "--warm-up-pod-cache=false"]).await;
    assert_eq!(bench.pods().await, []);
    runner.succeeds().await;
    let minutes = lifetime(&bench.pod().await).as_secs() / 60;
    assert!((175..=180).contains(&minutes), "{minutes} min");
}
