//! Which pods and Services are taken over, made again, passed by, and left alone.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Service};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_image::{Image, pod_name_past};
use porch_fn_tests::process::{eventually, figure};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::{Bench, INPUT, MANAGED_BY, MANAGER, RECLAIM_AFTER, uids};

const NAME_TAKEN: &str = "a pod that this runner does not manage holds the name of the function's pod: remove it from \
                          the function namespace";
const SERVICE_NAME_TAKEN: &str = "a Service that this runner does not manage holds the name of the function's: remove it \
                                  from the function namespace";

fn no_pod(image: &str, reason: &str) -> String {
    format!(
        "unable to get the grpc client to the pod for {image}: the function's pod failed to start: {reason}"
    )
}

fn at_once() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}

fn service(name: &str, labels: &Value, owners: &Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
        "spec": {"ports": [{"port": 9446}], "selector": {"fn.kpt.dev/image": "an-old-pod"}},
    })
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_a_pod_one_is_made_with_its_service() {
    let bench = Bench::new().await;
    assert_eq!(bench.namespace.pods().await, []);
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    assert_eq!(pod.name_any(), bench.name(0));
    assert_eq!(pod.labels()["fn.kpt.dev/image"], pod.name_any());
    assert_eq!(pod.annotations()["fn.kpt.dev/image-reference"], bench.image);
    assert!(pod.annotations()["fn.kpt.dev/template-version"].starts_with("inline-"));
    let service = bench.service_of(&pod).await;
    let spec = service.spec.unwrap();
    assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
    assert_eq!(spec.ports.unwrap()[0].port, 9446);
    assert_eq!(spec.selector.unwrap()["fn.kpt.dev/image"], pod.name_any());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_that_is_there_is_adopted() {
    let bench = Bench::new().await;
    let record = bench.namespace.record::<Pod>().await;
    // They race for the first pod.
    let (first, second) = tokio::join!(bench.runner(&[]), bench.runner(&[]));
    tokio::join!(first.succeeds(), second.succeeds(), first.succeeds(), second.succeeds());
    drop((first, second));
    // And one that was not there then finds it.
    bench.runner(&[]).await.succeeds().await;
    assert_eq!(uids(&record).len(), 1);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_that_is_gone_is_made_again() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    bench.namespace.api::<Pod>().delete(&pod.name_any(), &at_once()).await.unwrap();
    // Its processes may outlive it for a moment, and answer.
    let other = eventually("there is another pod", async || {
        runner.succeeds().await;
        bench.pods().await.into_iter().find(|other| other.uid() != pod.uid())
    })
    .await;
    // A call that met the end of its processes before the watch told of it made the other one in the surge slot.
    let name = other.name_any();
    assert!([bench.name(0), bench.name(1)].contains(&name), "{name}");
    bench.service_of(&other).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_failed_pod_is_replaced() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    bench.patch(&pod, json!({"spec": {"activeDeadlineSeconds": 1}})).await;
    let over = |pods: &[Pod]| {
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let failed = |other: &Pod| phase(other).as_deref() == Some("Failed");
        pods.iter().all(|other| other.uid() != pod.uid() || failed(other)).then_some(())
    };
    bench.namespace.until("the pod has failed", over).await;
    runner.succeeds().await;
    bench.gone(&pod).await;
    // The surge slot served while the failed one ended.
    let name = bench.pod().await.name_any();
    assert!([bench.name(0), bench.name(1)].contains(&name), "{name}");
}

/// Deletes a pod, and keeps its object.
async fn hold(bench: &Bench, pod: &Pod) {
    bench.patch(pod, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    let grace = DeleteParams::default().grace_period(1);
    bench.namespace.api::<Pod>().delete(&pod.name_any(), &grace).await.unwrap();
}

async fn release(bench: &Bench, pod: &Pod) {
    bench.patch(pod, json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_only_pod_that_terminates_holds_nobody_up() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    hold(&bench, &pod).await;
    runner.counts("terminating", 1).await;
    let begin = Instant::now();
    runner.succeeds().await;
    figure(&format!("a call after the only pod was deleted took {:.1?}", begin.elapsed()));
    assert!(begin.elapsed() < Duration::from_secs(6), "the next pod has another name");
    let pods = bench.pods().await;
    let other = pods.iter().find(|other| other.uid() != pod.uid()).expect("another pod");
    assert_eq!(other.name_any(), bench.name(1));
    release(&bench, &pod).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn pods_stuck_in_termination_are_passed() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    let mut stuck = Vec::new();
    for count in 1..=2 {
        runner.succeeds().await;
        let pods = bench.pods().await;
        let pod = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).expect("a pod");
        hold(&bench, &pod).await;
        runner.counts("terminating", count).await;
        stuck.push(pod);
    }
    runner.succeeds().await;
    let pods = bench.pods().await;
    let uids: Vec<_> = stuck.iter().map(Pod::uid).collect();
    let (held, others): (Vec<_>, Vec<_>) = pods.iter().partition(|other| uids.contains(&other.uid()));
    assert_eq!(held.len(), 2, "the finalizers hold them: {pods:#?}");
    let [other] = others[..] else { panic!("one has passed them: {pods:#?}") };
    let image = Image::parse(&bench.image, "").unwrap();
    assert_eq!(other.name_any(), pod_name_past(&image, 0, uids[0].as_ref().unwrap()));
    bench.service_of(other).await;
    let first = held.iter().find(|pod| pod.uid() == uids[0]).unwrap();
    let deleted = first.metadata.deletion_timestamp.as_ref().unwrap();
    let after = other.creation_timestamp().unwrap().0.as_second() - deleted.0.as_second();
    figure(&format!("a pod stuck in termination was passed {after} s past its deletion timestamp"));
    assert!((10..=40).contains(&after), "{after} s");
    for pod in &stuck {
        release(&bench, pod).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_foreign_pod_under_the_name_is_told_and_left_alone() {
    let bench = Bench::new().await;
    let foreign = bench.foreign_pod(&bench.name(0), json!({"app": "other"}), json!({"a": "b"})).await;
    let runner = bench.runner(&[]).await;
    runner.call(INPUT).await.fails(Code::Unknown, &no_pod(&bench.image, NAME_TAKEN));
    bench.untouched(&foreign).await;
    bench.namespace.api::<Pod>().delete(&foreign.name_any(), &at_once()).await.unwrap();
    // Starts pause after a failure, and calls are told the failure meanwhile.
    eventually("the name is free", async || (runner.call(INPUT).await.code == Code::Ok).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_of_another_image_under_the_name_is_left_alone() {
    let bench = Bench::new().await;
    let marker = bench.cluster.function_named("adoption/marker:v1").await;
    let labels = json!({MANAGED_BY: MANAGER, "fn.kpt.dev/image": bench.name(0)});
    let annotations = json!({
        "fn.kpt.dev/image-reference": "example.com/other:v1", "fn.kpt.dev/slot": "0", RECLAIM_AFTER: "2999-01-01T00:00:00Z",
    });
    let other = bench.foreign_pod(&bench.name(0), labels, annotations).await;
    // A pod with our labels that is never ready is ours to delete once its time is up.
    let runner = bench.runner_of(&[&bench.image, &marker], &["--pod-ready-timeout=10m"]).await;
    runner.call(INPUT).await.fails(Code::Unknown, &no_pod(&bench.image, NAME_TAKEN));
    // Once a pod that came later is collected, this one was looked at too.
    runner.client.call(&marker, INPUT).await.output();
    let pods = bench.pods().await;
    let later = pods.iter().find(|pod| pod.uid() != other.uid()).unwrap();
    bench.lapse(later).await;
    bench.gone(later).await;
    bench.untouched(&other).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_full_quota_hinders_no_adoption() {
    let bench = Bench::new().await;
    bench.runner(&[]).await.succeeds().await;
    let pod = bench.pod().await;
    let service = bench.service_of(&pod).await;
    let full = json!({"metadata": {"name": "full"}, "spec": {"hard": {"pods": "1", "services": "1"}}});
    bench.namespace.make::<ResourceQuota>(full).await;
    let counted = |quotas: &[ResourceQuota]| {
        let used = quotas.first()?.status.as_ref()?.used.as_ref()?;
        (used.get("pods")?.0 == "1" && used.get("services")?.0 == "1").then_some(())
    };
    bench.namespace.until("the quota is full", counted).await;
    for _ in 0..3 {
        bench.runner(&[]).await.succeeds().await;
    }
    assert_eq!(bench.pod().await.uid(), pod.uid());
    assert_eq!(bench.service_of(&pod).await.uid(), service.uid());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_without_a_service_gets_one() {
    let bench = Bench::new().await;
    bench.runner(&["--pod-connect=pod-ip"]).await.succeeds().await;
    let pod = bench.pod().await;
    assert_eq!(bench.namespace.services().await, []);
    bench.runner(&[]).await.succeeds().await;
    assert_eq!(bench.pod().await.uid(), pod.uid());
    bench.service_of(&pod).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_service_that_vanishes_is_made_again() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    let old = bench.service_of(&pod).await;
    bench.namespace.api::<Service>().delete(&old.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("there is another Service", async || {
        runner.succeeds().await;
        let services = bench.namespace.services().await;
        services.iter().any(|service| service.uid() != old.uid()).then_some(())
    })
    .await;
    assert_eq!(bench.pod().await.uid(), pod.uid());
    bench.service_of(&pod).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_service_of_another_pod_is_made_again() {
    for owned in [true, false] {
        let bench = Bench::new().await;
        // One that lives, or Kubernetes would delete the Service itself.
        let owner = bench.foreign_pod("owner", json!({}), json!({})).await;
        let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner.uid()}]);
        let owners = if owned { owners } else { json!([]) };
        let old: Service =
            bench.namespace.make(service(&bench.name(0), &json!({MANAGED_BY: MANAGER}), &owners)).await;
        let runner = bench.runner(&[]).await;
        runner.succeeds().await;
        let new = bench.service_of(&bench.pod().await).await;
        assert_ne!(new.uid(), old.uid());
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_foreign_service_under_the_name_is_told_and_left_alone() {
    let bench = Bench::new().await;
    let foreign: Service =
        bench.namespace.make(service(&bench.name(0), &json!({"app": "other"}), &json!([]))).await;
    let runner = bench.runner(&[]).await;
    runner.call(INPUT).await.fails(Code::Unknown, &no_pod(&bench.image, SERVICE_NAME_TAKEN));
    let now = bench.namespace.api::<Service>().get(&foreign.name_any()).await.unwrap();
    assert_eq!(now, foreign);
}
