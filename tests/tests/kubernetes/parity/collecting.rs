//! Which pods and Services go when nobody needs them, and which stay.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use porch_fn_tests::cluster::{Change, Recorder};
use porch_fn_tests::process::eventually;
use serde_json::json;

use super::{Bench, LONG_AGO, MANAGED_BY, MANAGER, RECLAIM_AFTER, sleeping};

/// The record may hear of it a little later than others do.
async fn one_was_deleted(record: &Recorder<Pod>) {
    let deleted =
        || record.changes().iter().filter(|(_, change)| matches!(change, Change::Deleted(_))).count();
    eventually("a pod was deleted", async || (deleted() > 0).then_some(())).await;
    assert_eq!(deleted(), 1);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_lapsed_pod_goes_with_its_service_and_nothing_else_does() {
    let bench = Bench::new().await;
    let fresh = bench.cluster.function_named("parity/fresh:v1").await;
    // As the original's look: its pods are not ours.
    let original = bench
        .foreign_pod("original", json!({"fn.kpt.dev/image": "original"}), json!({RECLAIM_AFTER: LONG_AGO}))
        .await;
    let bare = bench.foreign_pod("bare", json!({}), json!({})).await;
    let runner = bench.runner_of(&[&bench.image, &fresh], &[]).await;
    runner.succeeds().await;
    let lapsed = bench.pod().await;
    bench.service_of(&lapsed).await;
    runner.client.call(&fresh, super::INPUT).await.output();
    let record = bench.namespace.record::<Pod>().await;

    bench.lapse(&lapsed).await;
    bench.gone(&lapsed).await;
    let gone = |services: &[Service]| {
        services.iter().all(|service| service.name_any() != lapsed.name_any()).then_some(())
    };
    bench.namespace.until("its Service is gone", gone).await;
    bench.untouched(&original).await;
    bench.untouched(&bare).await;
    bench.service_of(&bench.pod().await).await;
    one_was_deleted(&record).await;
    // What is collected is forgotten, not failed.
    runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_restarted_runner_collects_what_lapsed_and_keeps_the_rest() {
    let bench = Bench::new().await;
    let kept = bench.cluster.function_named("parity/kept:v1").await;
    let images = [bench.image.as_str(), kept.as_str()];
    let first = bench.runner_of(&images, &[]).await;
    first.succeeds().await;
    let lapsed = bench.pod().await;
    first.client.call(&kept, super::INPUT).await.output();
    drop(first);
    let record = bench.namespace.record::<Pod>().await;
    bench.lapse(&lapsed).await;

    // Nobody has called it, and never will: the pod is an orphan.
    let second = bench.runner_of(&images, &[]).await;
    bench.gone(&lapsed).await;
    let pod = bench.pod().await;
    second.client.call(&kept, super::INPUT).await.output();
    assert_eq!(bench.pod().await.uid(), pod.uid());
    one_was_deleted(&record).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_in_use_stays() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    let record = bench.namespace.record::<Pod>().await;
    let lapse = async {
        runner.counts("in_flight", 1).await;
        bench.lapse(&pod).await;
        let pushed = |pods: &[Pod]| {
            let until = |pod: &Pod| pod.annotations()[RECLAIM_AFTER].clone();
            pods.iter().any(|pod| until(pod) != LONG_AGO).then_some(())
        };
        bench.namespace.until("the call pushes its pod's time", pushed).await;
    };
    let (answer, ()) = tokio::join!(runner.call(sleeping(Duration::from_secs(15))), lapse);
    answer.output();
    let deleted = |change: &Change<Pod>| match change {
        Change::Applied(pod) => pod.metadata.deletion_timestamp.is_some(),
        Change::Deleted(_) => true,
    };
    assert!(!record.changes().iter().any(|(_, change)| deleted(change)));
    runner.succeeds().await;
    assert_eq!(bench.pod().await.uid(), pod.uid());
}

/// Kubernetes collects what its owner's end leaves behind; these are what it does not.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn services_without_a_pod_go_after_a_minute() {
    let bench = Bench::new().await;
    let owner = bench.foreign_pod("owner", json!({}), json!({})).await;
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner.uid()}]);
    for (name, labels, owners) in [
        ("of-no-pod-of-ours", json!({MANAGED_BY: MANAGER}), owners),
        ("of-nobody", json!({MANAGED_BY: MANAGER}), json!([])),
        ("foreign", json!({}), json!([])),
    ] {
        let wish = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"ports": [{"port": 9446}]},
        });
        bench.namespace.make::<Service>(wish).await;
    }
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let own = bench.pod().await.name_any();
    let look = |services: &[Service]| (services.len() == 2).then(|| services.to_vec());
    let left = bench.namespace.until_within(Duration::from_secs(100), "two Services are left", look).await;
    let mut left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
    left.sort();
    assert_eq!(left, ["foreign", &own]);
}
