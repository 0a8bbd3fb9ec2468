//! Function pods, with one right on pods missing.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::process::eventually;
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};
use serde_json::json;
use tonic::Code;

use super::{Limited, MAY_NOT_CREATE, with_a_pod};
use crate::parity::{Bench, INPUT, LONG_AGO, RECLAIM_AFTER};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_create() {
    let limited = Limited::without(&[("create", "pods")], &[]).await;
    limited.fails(MAY_NOT_CREATE).await;
    drop(limited);
    let limited = Limited::start(with_a_pod().await, &[("create", "pods")], &[]).await;
    limited.runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_delete() {
    let limited = Limited::without(&[("delete", "pods")], &[]).await;
    limited.runner.succeeds().await;
    let pod = limited.bench.pod().await;
    limited.bench.lapse(&pod).await;
    limited.says("a pod was not deleted").await;
    limited.runner.succeeds().await;
    assert_eq!(limited.bench.pod().await.uid(), pod.uid());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_get() {
    let limited = Limited::without(&[("get", "pods")], &[]).await;
    limited.works().await;
    drop(limited);

    let bench = Bench::new().await;
    let foreign = bench.foreign_pod(&bench.name(0), json!({}), json!({})).await;
    let limited = Limited::start(bench, &[("get", "pods")], &["--pod-ready-timeout=2s"]).await;
    let answer = limited.runner.call(INPUT).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{}", answer.message);
    limited.says("pod not created after several attempts").await;
    limited.bench.untouched(&foreign).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_list() {
    let limited = Limited::without(&[("list", "pods")], &["--pod-ready-timeout=10s"]).await;
    let text = format!(
        "unable to get the grpc client to the pod for {}: no pod of this function was ready within 10s (the runner could \
         not list the pods of the function namespace: check that it reaches the API server and that its Role has the \
         verbs list and watch on pods): check that its image starts in that time, or raise --pod-ready-timeout",
        limited.bench.image
    );
    limited.runner.call(INPUT).await.fails(Code::DeadlineExceeded, &text);
    limited.says("cannot list resource").await;
    // The list is tried again and again: a start that failed is none for ever.
    limited.allow(&Roles::of(&[BASE]).rules(FUNCTIONS)).await;
    eventually("the pods are listed", async || {
        (limited.runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_watch() {
    let limited = Limited::without(&[("watch", "pods")], &[]).await;
    limited.runner.succeeds().await;
    limited.says("cannot watch resource").await;
    let pod = limited.bench.pod().await;
    limited.bench.namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("another pod serves", async || {
        limited.runner.succeeds().await;
        let pods = limited.bench.pods().await;
        pods.iter().all(|other| other.uid() != pod.uid()).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_patch() {
    let limited = Limited::start(with_a_pod().await, &[("patch", "pods")], &["--scan-interval=1h"]).await;
    let pod = limited.bench.pod().await;
    limited.bench.lapse(&pod).await;
    limited.runner.succeeds().await;
    eventually("a push is refused", async || {
        limited.runner.succeeds().await;
        limited.runner.server.log().contains("reclaim-after of a pod was not written").then_some(())
    })
    .await;
    assert_eq!(limited.bench.pod().await.annotations()[RECLAIM_AFTER], LONG_AGO);
}
