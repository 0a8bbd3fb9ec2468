//! Upgrades all programs at once on the cluster, under load.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Change, Cluster, Discovery, Plan, ROUTER, RUNNERS, Recorder, until};
use porch_fn_tests::process::figure;
use tokio::time::{Instant, sleep};

use super::push_before;
use crate::alone::scaling::{Stand, functions};
use crate::rig::{INPUT, REFERENCE};

/// How long the rollout pauses with runners of both versions. An owner waits a minute before it
/// replaces pods.
const BOTH: Duration = Duration::from_secs(90);
/// The maximum time from the end of the rollout until all pods are replaced.
const REPLACED_WITHIN: Duration = Duration::from_mins(8);
/// How long nothing may change after that. It is longer than an owner waits before it replaces
/// pods.
const STAYS: Duration = Duration::from_secs(80);

/// The number of pods that each image has had.
fn births(record: &Recorder<Pod>) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for (_, change) in record.changes() {
        let (Change::Applied(pod) | Change::Deleted(pod)) = change;
        seen.insert(pod.uid().unwrap(), pod.annotations()[REFERENCE].clone());
    }
    let mut births = BTreeMap::new();
    for image in seen.into_values() {
        *births.entry(image).or_default() += 1;
    }
    births
}

fn wrapper_of(pod: &Pod) -> Vec<&str> {
    pod.spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .filter_map(|container| container.image.as_deref())
        .collect()
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
    let stand = Stand::start(&cluster, &before, images).await;
    let installation = &stand.installation;

    let upgrade = async || {
        // Runners of both versions run for a while.
        installation.install(RUNNERS, &after).await;
        let new = |pods: &[Pod]| {
            pods.iter().any(|pod| wrapper_of(pod).contains(&after.runner_image.as_str())).then_some(())
        };
        until(installation.home().api(), "a runner of this version", Duration::from_mins(1), new).await;
        installation.kubectl(&["rollout", "pause", "deployment", RUNNERS]).await;
        sleep(BOTH).await;
        figure(&format!("with runners of both versions, pods per image: {:?}", births(&stand.record)));
        installation.kubectl(&["rollout", "resume", "deployment", RUNNERS]).await;
        installation.rolled_out(RUNNERS).await;
        installation.install(ROUTER, &after).await;
        installation.rolled_out(ROUTER).await;
    };
    stand.under_load("runners and routers upgraded", upgrade).await;

    let start = Instant::now();
    let replaced = async || {
        let new = |pods: &[Pod]| {
            let all = pods.len() == stand.images.len();
            let new = |pod: &Pod| wrapper_of(pod).contains(&after.wrapper_image.as_str());
            (all && pods.iter().all(new)).then_some(())
        };
        stand.installation.functions.until_within(REPLACED_WITHIN, "all pods are new", new).await;
        figure(&format!("all function pods replaced {:.0?} after the rollout", start.elapsed()));
        sleep(STAYS).await;
    };
    stand.under_load("function pods replaced", replaced).await;
    let births = births(&stand.record);
    let client = Client::new(installation.address());
    for image in &stand.images {
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
    }
    figure(&format!("pods per image: {:?}", births.values().collect::<Vec<_>>()));
    assert_eq!(births.len(), stand.images.len());
    assert!(births.values().all(|&count| count == 2), "each is replaced once: {births:?}");
}
