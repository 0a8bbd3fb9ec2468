//! The API server is unavailable for a minute, so Kubernetes regards the node as lost.
//! `alone::outage` tests one runner. With DNS discovery, a router gets empty DNS answers during an
//! outage; `fleet` tests empty answers.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::cluster::{Cluster, Discovery, Plan};
use porch_fn_tests::process::eventually;
use tokio::time::sleep;

use crate::alone::outage::Stopped;
use crate::alone::scaling::{WarmInstallation, functions};

const LASTING: Duration = Duration::from_mins(1);

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// When the API server is back, Kubernetes regards the node as lost. Then no router, runner or
/// function pod is ready, but all of them still serve.
#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn an_api_server_that_stops_for_a_minute_fails_no_call_of_a_fleet() {
    let cluster = Cluster::connect().await;
    let plan = Plan::new(&cluster, Discovery::EndpointSlices, 3);
    let images = functions(&cluster, "outage-fleet").await;
    let warm = WarmInstallation::start(&cluster, &plan, images).await;
    let fleet = warm.installation.home().record::<Pod>().await;
    let what = format!("API server stopped for {LASTING:?}");
    let stopped = async || {
        // The kubelet is stopped, too. Otherwise it could report the node as healthy before
        // Kubernetes regards the node as lost.
        let kubelet = Stopped::stop(cluster.machine(), "kubelet").await;
        let api_server = Stopped::stop(cluster.machine(), "kube-apiserver").await;
        sleep(LASTING).await;
        drop(api_server);
        eventually("the node is regarded as lost", async || {
            (fleet.most_at_once(|pod| !is_ready(pod)) == 5).then_some(())
        })
        .await;
        sleep(Duration::from_secs(10)).await;
        drop(kubelet);
        sleep(LASTING / 2).await;
    };
    warm.under_load(&what, stopped).await;
    warm.assert_no_new_pod().await;
}
