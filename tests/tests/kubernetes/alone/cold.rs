//! Measures how soon a first call is answered if its function has no pod yet. The time starts when
//! the runner can know that the pod serves. So it excludes scheduling and starting containers,
//! which is the node's part. With Services, kube-proxy's rules must also be in place first.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use porch_fn_tests::cluster::Namespace;
use porch_fn_tests::process::figure;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::rig::{Bench, CONNECTS, INPUT};

const RUNS: usize = 8;
/// The maximum time until the answer. It starts when the pod's IP is in a watch event and the
/// wrapper listens. The first bound is for the median, the second for all runs but one on a busy
/// node.
const BOUND: Duration = Duration::from_millis(150);
const BOUND_ON_A_BUSY_NODE: Duration = Duration::from_millis(500);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_cold_start_is_answered_as_soon_as_the_pod_can() {
    for connect in CONNECTS {
        let bench = Bench::new().await;
        let runner = bench.runner(&[&format!("--pod-connect={connect}")]).await;
        // After this call, the images are on the node.
        runner.succeeds().await;
        let mut late = Vec::new();
        for _ in 0..RUNS {
            bench.delete(&bench.pod().await, &DeleteParams::default()).await;
            let empty = |pods: &[Pod]| pods.is_empty().then_some(());
            bench.namespace.until("the pod is gone", empty).await;
            let empty = |services: &[Service]| services.is_empty().then_some(());
            bench.namespace.until("its Service is gone", empty).await;
            for field in ["ready", "terminating"] {
                runner.counts(field, 0).await;
            }
            let call = async {
                let answer = runner.call(INPUT).await;
                (answer, Instant::now())
            };
            let ((answer, answered), listening) = tokio::join!(call, listens(&bench.namespace));
            assert_eq!(answer.output(), INPUT);
            late.push(answered.saturating_duration_since(listening));
        }
        late.sort();
        figure(&format!("cold starts by {connect}, from when the pod could answer: {late:.1?}"));
        assert!(late[RUNS / 2] <= BOUND, "above {BOUND:?}: {late:?}");
        assert!(late[RUNS - 2] <= BOUND_ON_A_BUSY_NODE, "two above {BOUND_ON_A_BUSY_NODE:?}: {late:?}");
    }
}

/// The time when the pod's wrapper first accepted a connection.
async fn listens(namespace: &Namespace) -> Instant {
    let ip = |pods: &[Pod]| pods.first()?.status.as_ref()?.pod_ip.as_ref()?.parse::<IpAddr>().ok();
    let address = SocketAddr::new(namespace.until("the pod has an IP", ip).await, 9446);
    while TcpStream::connect(address).await.is_err() {
        sleep(Duration::from_millis(2)).await;
    }
    Instant::now()
}
