//! Runs of minutes, for `tests/faults`.

use super::*;

/// What a pod lives unused on Kubernetes at the least: four times the clocks' allowed difference.
const LIFETIME: Duration = Duration::from_mins(2);
/// By then it is collected, whatever fails.
const COLLECTED_WITHIN: Duration = Duration::from_mins(4);
/// With these no watch lives. Who cannot see what others do with a pod does not collect it.
const BLIND: [&str; 3] = ["watches are cut", "watches expire", "watches are refused"];

#[tokio::test]
#[ignore = "takes minutes; tests/faults runs it"]
async fn pods_are_collected_whatever_fails() {
    let cluster = Cluster::connect().await;
    let tests =
        faults().into_iter().zip(1..).map(|((what, rules), seed)| collected(&cluster, what, rules, seed));
    // Most of the time they wait.
    join_all(tests).await;
}

async fn collected(cluster: &Cluster, what: &str, rules: Vec<Rule>, seed: u64) {
    let image = cluster.function_image();
    let stand = Stand::start(cluster, rules, seed, 1, &[&image], &["--pod-ttl=1s"]).await;
    stand.succeeds(what, 0, &image).await;
    let start = Instant::now();
    if BLIND.contains(&what) {
        sleep(LIFETIME * 5 / 4).await;
        assert_eq!(stand.namespace.pods().await.len(), 1, "{what}: collected");
        stand.proxy.set([]);
    }
    let none = |pods: &[Pod]| pods.is_empty().then_some(());
    stand.namespace.until_within(COLLECTED_WITHIN, "the pod is collected", none).await;
    let took = start.elapsed();
    let none = |services: &[Service]| services.is_empty().then_some(());
    stand.namespace.until("its Service is collected", none).await;
    figure(&format!("{what}: an unused pod was collected after {took:.0?}"));
    stand.succeeds(what, 0, &image).await;
    stand.proxy.set([]);
    stand.settles(what).await;
    stand.never_more_than(what, 1, &[&image]);
}

#[tokio::test]
#[ignore = "takes minutes; tests/faults runs it"]
async fn all_faults_together_lose_no_call_for_minutes() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("PORCH_FN_TEST_SEED").map_or(now.as_secs(), |seed| seed.parse().unwrap());
    for seed in seed..seed + 3 {
        mix(Duration::from_mins(1), seed).await;
    }
}
