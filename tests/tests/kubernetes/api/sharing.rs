//! Several runners share the same pods. Only the API server coordinates them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::figure;
use tokio::time::Instant;

use crate::rig::{INPUT, Setup, alive, births, count, wait_count};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn first_calls_on_three_runners_with_different_views_share_the_limit_of_pods() {
    const CALLS: usize = 100;
    const LIMIT: usize = 2;
    let setup = Setup::new().await;
    let image = &setup.image;
    let limit = format!("--max-parallel-pods-per-function={LIMIT}");
    // Each runner knows only itself and one other, so an image may have two owners.
    let start = async |[own, other]: [u8; 2]| {
        let [own, other] = [own, other].map(|last| format!("127.0.7.{last}"));
        let peers = format!("{own}:9445,{other}:9445");
        setup.peer(&own, &peers, setup.cluster.kubeconfig(), &[image], &[&limit]).await
    };
    let runners = join_all([[1, 2], [2, 3], [3, 1]].map(start)).await;
    let record = setup.namespace.record::<Pod>().await;

    let calls = runners.iter().flat_map(|runner| {
        let client = Arc::new(Client::new(runner.address()));
        (0..CALLS).map(move |number| {
            let client = Arc::clone(&client);
            async move {
                let input = format!("{INPUT}# call {number}, test-sleep-ms: 20\n");
                assert_eq!(client.call(image, input.clone()).await.output(), &input);
            }
        })
    });
    join_all(calls).await;

    assert_eq!(record.most_at_once(alive), LIMIT);
    assert_eq!(births(&record).len(), LIMIT, "no pod was created in vain");
    for runner in &runners {
        for field in ["terminating", "in_flight", "waiting"] {
            assert_eq!(count(runner, image, field).await, 0, "{field}");
        }
        // Each runner has its own watch of the pods. If one pod answered all calls of a runner,
        // this runner may learn only later that the other pod is ready.
        wait_count(runner, image, "ready", LIMIT as u64).await;
    }
}

/// Four functions share a quota of two pods. When the API server refuses a pod because of the
/// quota, a runner asks the owner of an unused pod to delete that pod.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn functions_take_turns_in_a_quota_of_pods() {
    let setup = Setup::new().await;
    setup.quota("2").await;
    let images = [0, 1, 2, 3].map(|number| format!("example.com/turns-{number}:v1"));
    let listed = images.each_ref().map(String::as_str);
    let kubeconfigs = [(); 3].map(|()| setup.cluster.kubeconfig());
    let runners = setup.fleet("127.0.6", &kubeconfigs, &listed, &["--scan-interval=2s"]).await;
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
        "4 functions by turns in a quota of 2 pods, on 3 runners: the slowest call {slowest:.1?}"
    ));
}
