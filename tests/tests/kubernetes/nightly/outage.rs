//! The API server is unavailable for a minute, so a whole fleet's node counts as lost.
//! `alone::outage` tests one runner. With DNS discovery, routers notice an outage only as an empty
//! answer, which `fleet` tests.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::cluster::{Cluster, Discovery, Plan};
use porch_fn_tests::process::eventually;
use tokio::time::sleep;

use crate::alone::outage::Stopped;
use crate::alone::scaling::{Stand, functions};

const LASTING: Duration = Duration::from_mins(1);

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node counts as lost when the API server is back. No router, runner or function pod is ready
/// then, but all of them still serve.
#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn an_api_server_that_stops_for_a_minute_costs_a_fleet_no_call() {
    let cluster = Cluster::connect().await;
    let plan = Plan::new(&cluster, Discovery::EndpointSlices, 3);
    let images = functions(&cluster, "outage-fleet").await;
    let stand = Stand::start(&cluster, &plan, images).await;
    let fleet = stand.installation.home().record::<Pod>().await;
    let what = format!("API server stopped for {LASTING:?}");
    let stopped = async || {
        // A running kubelet could report early enough to keep the node from being lost.
        let kubelet = Stopped::stop(cluster.own(), "kubelet").await;
        let api_server = Stopped::stop(cluster.own(), "kube-apiserver").await;
        sleep(LASTING).await;
        drop(api_server);
        eventually("the node counts as lost", async || {
            (fleet.most_at_once(|pod| !is_ready(pod)) == 5).then_some(())
        })
        .await;
        sleep(Duration::from_secs(10)).await;
        drop(kubelet);
        sleep(LASTING / 2).await;
    };
    stand.under_load(&what, stopped).await;
    stand.no_pod_was_made().await;
}
