//! The API server away for a minute for a whole fleet, which also counts its node as lost.
//! `alone::outage` has one runner. With DNS an empty answer is all that routers notice of it:
//! `fleet` has that.

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

/// The node counts as lost when the API server is back: no router, no runner and no function
/// pod is ready, and all of them serve.
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
        // A kubelet that is heard of at once may be in time for the node.
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
