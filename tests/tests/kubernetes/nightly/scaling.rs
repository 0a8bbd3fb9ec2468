//! All that an operator does to runners and routers, one action after the other, and a runner that
//! is killed. Uses DNS discovery; `alone::scaling` uses `EndpointSlices`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use porch_fn_tests::cluster::{Cluster, Discovery, Plan, ROUTER, RUNNERS};
use porch_fn_tests::process::figure;
use tokio::time::Instant;

use crate::alone::scaling::{Stand, functions};

/// How long the last function pod may exist without load. A pod lives at least 2 minutes, whatever
/// `--pod-ttl` says.
const ORPHANS_WITHIN: Duration = Duration::from_mins(4);

#[tokio::test]
#[ignore = "needs a cluster; tests/run nightly runs it"]
async fn scaled_restarted_and_killed() {
    let cluster = Cluster::connect().await;
    let mut plan = Plan::new(&cluster, Discovery::Dns, 2);
    // A runner keeps a pod for as long as its last call might have taken, so the timeout is short.
    plan.router_flags = vec!["--request-timeout=1m".into()];
    plan.runner_flags = vec!["--pod-ttl=1m".into(), "--scan-interval=5s".into()];
    let stand = Stand::start(&cluster, &plan, functions(&cluster, "operated").await).await;
    let installation = &stand.installation;
    stand.scaled(&[4, 1, 3]).await;
    stand.under_load("runners restarted", async || installation.restart(RUNNERS).await).await;
    stand.under_load("routers restarted", async || installation.restart(ROUTER).await).await;
    let kill = async || {
        let owner = installation.owner(&stand.images[0]).await.name_any();
        installation.kubectl(&["delete", "pod", &owner, "--force", "--grace-period=0"]).await;
        installation.rolled_out(RUNNERS).await;
    };
    stand.under_load("an owner's pod deleted by force", kill).await;
    stand.no_pod_was_made().await;

    let start = Instant::now();
    let functions = &installation.functions;
    let none_left = |pods: &[Pod]| pods.is_empty().then_some(());
    functions.until_within(ORPHANS_WITHIN, "all function pods are gone", none_left).await;
    let none_left = |services: &[Service]| services.is_empty().then_some(());
    functions.until_within(ORPHANS_WITHIN, "all Services are gone", none_left).await;
    figure(&format!(
        "without load, all function pods and Services are gone after {:.0?}: 0 orphans",
        start.elapsed()
    ));
}
