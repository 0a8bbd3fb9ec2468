//! Counts the API requests that function pods cause. The table "Requests to the API server" of
//! docs/operate.md is made of these figures.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Audit, Cluster, Mark};
use porch_fn_tests::process::{Sandbox, eventually, figure};
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::rig::INPUT;
use crate::rig::{LONG_AGO, RECLAIM_AFTER};

/// The number of function pods. The node accepts at most 110 pods.
const PODS: usize = 40;
/// The number of pods that the test expires and the runner deletes. A small node can stop this
/// number of pods in reasonable time.
const COLLECTED: usize = 20;
const WARM_CALLS: usize = 2000;
/// How long the test counts requests while nobody calls.
const IDLE: Duration = Duration::from_mins(2);
/// The maximum number of requests per pod, from its creation to its end. The pod and its Service
/// need two requests each; the rest is margin.
const MOST: usize = 8;

/// The number of a user's requests since `mark`. Prints them by verb and resource.
async fn requests(audit: &Audit, mark: &Mark, user: &str, what: &str) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in audit.since(mark).await {
        if request.user == user {
            *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
        }
    }
    let total = counts.values().sum();
    figure(&format!("{what}: {total} requests {counts:?}"));
    total
}

#[tokio::test]
#[ignore = "minutes; tests/run nightly runs it"]
async fn api_requests_of_function_pods() {
    let cluster = Cluster::connect().await;
    let audit = cluster.audit();
    let (namespace, home, sandbox) = (cluster.namespace().await, cluster.namespace().await, Sandbox::new());
    let account = home.account("runner").await;
    account.allow(&namespace, &Roles::of(&[BASE]).rules(FUNCTIONS)).await;
    let user = format!("system:serviceaccount:{}:runner", home.name());
    let mut images = Vec::new();
    for number in 0..PODS {
        images.push(cluster.function_named(&format!("sized/function-{number}:v1")).await);
    }
    let all: Vec<_> = images.iter().map(String::as_str).collect();
    let runner = async |more: &[&str]| {
        let flags = [&["--pod-ready-timeout=5m"], more].concat();
        let kubeconfig = account.kubeconfig(&sandbox).await;
        Box::pin(namespace.runner_as(&sandbox, kubeconfig, &all, &flags)).await
    };

    let mark = audit.mark().await;
    let first = runner(&[]).await;
    let client = Client::new(first.address());
    requests(&audit, &mark, &user, "a start without pods").await;

    let mark = audit.mark().await;
    client.call_all(&images, INPUT).await;
    requests(&audit, &mark, &user, &format!("{PODS} pods made")).await;

    let mark = audit.mark().await;
    client.call_all(images.iter().cycle().take(WARM_CALLS), INPUT).await;
    let warm = requests(&audit, &mark, &user, &format!("{WARM_CALLS} warm calls")).await;
    assert!(warm <= PODS, "{warm}");

    let mark = audit.mark().await;
    sleep_until(Instant::now() + IDLE).await;
    requests(&audit, &mark, &user, &format!("{IDLE:?} without calls")).await;
    drop(first);
    let mark = audit.mark().await;
    let second = runner(&[]).await;
    requests(&audit, &mark, &user, &format!("a start with {PODS} pods")).await;
    drop(second);

    let pods: Api<Pod> = namespace.api();
    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let gone = async || {
        eventually("no pod is left", async || {
            pods.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    };
    gone().await;
    let mark = audit.mark().await;
    let third = runner(&["--scan-interval=1s"]).await;
    Client::new(third.address()).call_all(images.iter().take(COLLECTED), INPUT).await;
    let expired = json!({"metadata": {"annotations": {RECLAIM_AFTER: LONG_AGO}}});
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&expired)).await.unwrap();
    }
    gone().await;
    let whole = requests(&audit, &mark, &user, &format!("{COLLECTED} pods made and collected")).await;
    assert!(whole <= MOST * COLLECTED, "{whole}");
    drop(third);
    namespace.finish().await;
}
