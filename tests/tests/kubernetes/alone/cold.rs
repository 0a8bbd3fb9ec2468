//! Measures how soon the first call of a function without a pod is answered. The measurement starts
//! when the new pod accepts connections, so it excludes scheduling and starting containers. With
//! Services, it includes kube-proxy's update of its rules.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use porch_fn_tests::cluster::Namespace;
use porch_fn_tests::process::{PATIENCE, figure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::rig::{CONNECTS, INPUT, Setup};

const RUNS: usize = 8;
/// The largest allowed median of the times from the pod's first connection to the answer.
const BOUND: Duration = Duration::from_millis(150);
/// The largest allowed time of a single run, on a busy node. The slowest run is ignored.
const BOUND_ON_A_BUSY_NODE: Duration = Duration::from_millis(500);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_first_call_is_answered_soon_after_the_pod_accepts_connections() {
    for connect in CONNECTS {
        let setup = Setup::new().await;
        let runner = setup.runner(&[&format!("--pod-connect={connect}")]).await;
        // After this call, the node has the images.
        runner.call_ok().await;
        let mut late = Vec::new();
        for _ in 0..RUNS {
            setup.delete(&setup.pod().await, &DeleteParams::default()).await;
            setup.namespace.wait_empty::<Pod>(PATIENCE).await;
            setup.namespace.wait_empty::<Service>(PATIENCE).await;
            for field in ["ready", "terminating"] {
                runner.wait_count(field, 0).await;
            }
            let call = async {
                let answer = runner.call(INPUT).await;
                (answer, Instant::now())
            };
            let ((answer, answered), listening) = tokio::join!(call, wait_listening(&setup.namespace));
            assert_eq!(answer.output(), INPUT);
            late.push(answered.saturating_duration_since(listening));
        }
        late.sort();
        figure(&format!("cold starts by {connect}, from when the pod accepts connections: {late:.1?}"));
        assert!(late[RUNS / 2] <= BOUND, "above {BOUND:?}: {late:?}");
        assert!(late[RUNS - 2] <= BOUND_ON_A_BUSY_NODE, "two above {BOUND_ON_A_BUSY_NODE:?}: {late:?}");
    }
}

/// Waits until the pod's wrapper-server accepts a connection, and returns the time.
async fn wait_listening(namespace: &Namespace) -> Instant {
    let ip = |pods: &[Pod]| pods.first()?.status.as_ref()?.pod_ip.as_ref()?.parse::<IpAddr>().ok();
    let address = SocketAddr::new(namespace.wait_until("the pod has an IP", ip).await, 9446);
    while TcpStream::connect(address).await.is_err() {
        sleep(Duration::from_millis(2)).await;
    }
    Instant::now()
}
