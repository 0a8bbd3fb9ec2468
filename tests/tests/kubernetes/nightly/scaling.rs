//! Scales and restarts runners and routers like an operator, and kills a runner. This test uses DNS
//! discovery; `alone::scaling` uses `EndpointSlices`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use porch_fn_tests::cluster::{Cluster, Discovery, Plan, ROUTER, RUNNERS};
use porch_fn_tests::process::figure;
use tokio::time::Instant;

use crate::alone::scaling::{WarmInstallation, functions};

/// The maximum time until all function pods are gone without load. A pod lives at least 2 minutes,
/// even with a shorter `--pod-ttl`.
const GONE_WITHIN: Duration = Duration::from_mins(4);

#[tokio::test]
#[ignore = "needs a cluster; tests/run nightly runs it"]
async fn runners_and_routers_are_scaled_restarted_and_killed() {
    let cluster = Cluster::connect().await;
    let mut plan = Plan::new(&cluster, Discovery::Dns, 2);
    // With a longer request timeout, a runner would keep unused pods longer than GONE_WITHIN: a
    // pod's last call may take this long.
    plan.router_flags = vec!["--request-timeout=1m".into()];
    plan.runner_flags = vec!["--pod-ttl=1m".into(), "--scan-interval=5s".into()];
    let warm = WarmInstallation::start(&cluster, &plan, functions(&cluster, "operated").await).await;
    let installation = &warm.installation;
    warm.scale_under_load(&[4, 1, 3]).await;
    warm.under_load("runners restarted", async || installation.restart(RUNNERS).await).await;
    warm.under_load("routers restarted", async || installation.restart(ROUTER).await).await;
    let kill = async || {
        let owner = installation.owner(&warm.images[0]).await.name_any();
        installation.kubectl(&["delete", "pod", &owner, "--force", "--grace-period=0"]).await;
        installation.rolled_out(RUNNERS).await;
    };
    warm.under_load("an owner's pod deleted by force", kill).await;
    warm.assert_no_new_pod().await;

    let start = Instant::now();
    let functions = &installation.functions;
    functions.wait_empty::<Pod>(GONE_WITHIN).await;
    functions.wait_empty::<Service>(GONE_WITHIN).await;
    figure(&format!(
        "without load, all function pods and Services are gone after {:.0?}: 0 orphans",
        start.elapsed()
    ));
}
