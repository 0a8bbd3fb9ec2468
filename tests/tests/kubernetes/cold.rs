//! How soon a call is answered whose function has no pod yet. The node's part, scheduling and starting containers, is
//! not ours; what comes after it is: from the moment at which the pod can be known to serve, and does. In service mode
//! that has a part that is not ours either: most of it is kube-proxy's, whose rules must be in place first.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::calls::{INPUT, count};

const RUNS: usize = 10;
/// What the answer may take from the first watch event with the pod's IP, or from the wrapper listening, if later.
/// All do on a quiet node, which the figures show; on a busy one kube-proxy alone may take longer now and then, and one
/// answer in so many runs has no bound.
const BOUND: Duration = Duration::from_millis(150);
const BOUND_ON_A_BUSY_NODE: Duration = Duration::from_millis(500);
/// Where a wrapper listens.
const PORT: u16 = 9446;

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_reached_by_its_address_answers_as_soon_as_it_can() {
    cold_starts("pod-ip").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_reached_by_its_service_answers_as_soon_as_it_can() {
    cold_starts("service").await;
}

async fn cold_starts(connect: &str) {
    let cluster = Cluster::connect().await;
    let namespace = cluster.namespace().await;
    let sandbox = Sandbox::new();
    let image = cluster.function_image();
    let runner = namespace.runner(&sandbox, &[&image], &[&format!("--pod-connect={connect}")]).await;
    let client = Client::new(runner.address());
    // The images are on the node from then on.
    assert_eq!(client.call(&image, INPUT).await.output(), INPUT);

    let mut late = Vec::new();
    for run in 0..RUNS {
        remove(&namespace, &runner, &image).await;
        let start = Instant::now();
        let call = async {
            let answer = client.call(&image, INPUT).await;
            (answer, Instant::now())
        };
        let ((answer, answered), (known, listening)) = tokio::join!(call, listens(&namespace));
        assert_eq!(answer.output(), INPUT);
        let after = answered.saturating_duration_since(known.max(listening));
        figure(&format!(
            "cold start by {connect} {run}: answered {after:.1?} after it could be (IP known at {:.0?}, listening at \
             {:.0?}), whole call {:.0?}",
            known - start,
            listening - start,
            answered - start
        ));
        late.push(after);
    }
    late.sort();
    figure(&format!(
        "cold start by {connect}: median {:.1?}, slowest {:.1?}, {} of {RUNS} within {BOUND:?}",
        late[RUNS / 2],
        late[RUNS - 1],
        late.iter().filter(|late| **late <= BOUND).count()
    ));
    assert!(late[RUNS / 2] <= BOUND, "above {BOUND:?}: {late:?}");
    assert!(late[RUNS - 2] <= BOUND_ON_A_BUSY_NODE, "two above {BOUND_ON_A_BUSY_NODE:?}: {late:?}");
}

/// Deletes the function's pod and waits until nobody remembers it.
async fn remove(namespace: &Namespace, runner: &Server, image: &str) {
    for pod in namespace.pods().await {
        namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    }
    namespace.until("the pod is gone", |pods: &[Pod]| pods.is_empty().then_some(())).await;
    namespace.until("its Service is gone", |services: &[Service]| services.is_empty().then_some(())).await;
    eventually("the runner knows", async || {
        (count(runner, image, "ready").await + count(runner, image, "terminating").await == 0).then_some(())
    })
    .await;
}

/// When a watch first showed the pod's IP, and when its wrapper first took a connection after that.
async fn listens(namespace: &Namespace) -> (Instant, Instant) {
    let ip = |pods: &[Pod]| pods.first()?.status.as_ref()?.pod_ip.as_ref()?.parse::<IpAddr>().ok();
    let ip = namespace.until("the pod has an IP", ip).await;
    let known = Instant::now();
    let address = SocketAddr::new(ip, PORT);
    while TcpStream::connect(address).await.is_err() {
        sleep(Duration::from_millis(2)).await;
    }
    (known, Instant::now())
}
