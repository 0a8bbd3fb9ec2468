//! A rolling upgrade of all programs in the cluster, under load.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Discovery, Plan, ROUTER, RUNNERS, Recorder, wait_until};
use porch_fn_tests::process::figure;
use tokio::time::{Instant, sleep};

use super::push_before;
use crate::alone::scaling::{WarmInstallation, functions};
use crate::rig::{INPUT, REFERENCE, births};

/// How long the rollout pauses with runners of both versions. A runner waits less than this time
/// before it replaces pods.
const BOTH_VERSIONS: Duration = Duration::from_secs(90);
/// The maximum time from the end of the rollout until all function pods are replaced. A runner that
/// owns fewer than 40 pods replaces one at a time. One replacement takes two minutes.
const REPLACED_WITHIN: Duration = Duration::from_mins(30);
/// After all pods are replaced, no pod may be replaced for this time.
const UNCHANGED: Duration = Duration::from_secs(80);

/// The number of pods that each image has had.
fn pods_per_image(record: &Recorder<Pod>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in births(record) {
        *counts.entry(pod.annotations()[REFERENCE].clone()).or_default() += 1;
    }
    counts
}

fn has_image(pod: &Pod, image: &str) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.any(|container| container.image.as_deref() == Some(image))
}

#[tokio::test]
#[ignore = "needs the version before; tests/run nightly runs it"]
async fn a_rolling_upgrade_replaces_each_pod_once() {
    let cluster = Cluster::connect().await;
    let images = functions(&cluster, "upgraded").await;
    let (programs, wrapper) = push_before(&cluster).await;
    let after = Plan::new(&cluster, Discovery::Dns, 3);
    let before = Plan {
        router_image: programs.clone(),
        runner_image: programs,
        wrapper_image: wrapper,
        listed_images: Some(images.clone()),
        ..after.clone()
    };
    let warm = WarmInstallation::start(&cluster, &before, images).await;
    let installation = &warm.installation;

    let upgrade = async || {
        // Runners of both versions run for a while.
        installation.install(RUNNERS, &after).await;
        let new = |pods: &[Pod]| pods.iter().any(|pod| has_image(pod, &after.runner_image)).then_some(());
        wait_until(installation.home().api(), "a runner of this version", Duration::from_mins(1), new).await;
        installation.kubectl(&["rollout", "pause", "deployment", RUNNERS]).await;
        sleep(BOTH_VERSIONS).await;
        figure(&format!("with runners of both versions, pods per image: {:?}", pods_per_image(&warm.record)));
        installation.kubectl(&["rollout", "resume", "deployment", RUNNERS]).await;
        installation.rolled_out(RUNNERS).await;
        installation.install(ROUTER, &after).await;
        installation.rolled_out(ROUTER).await;
    };
    warm.under_load("runners and routers upgraded", upgrade).await;

    let start = Instant::now();
    let replaced = async || {
        let new = |pods: &[Pod]| {
            let new = |pod: &Pod| has_image(pod, &after.wrapper_image);
            (pods.len() == warm.images.len() && pods.iter().all(new)).then_some(())
        };
        wait_until(installation.functions.api(), "all pods are new", REPLACED_WITHIN, new).await;
        figure(&format!("all function pods replaced {:.0?} after the rollout", start.elapsed()));
        sleep(UNCHANGED).await;
    };
    warm.under_load("function pods replaced", replaced).await;
    let pods = pods_per_image(&warm.record);
    let client = Client::new(installation.address());
    for image in &warm.images {
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
    }
    figure(&format!("pods per image: {:?}", pods.values().collect::<Vec<_>>()));
    assert_eq!(pods.len(), warm.images.len());
    assert!(pods.values().all(|&count| count == 2), "each pod is replaced once: {pods:?}");
}
