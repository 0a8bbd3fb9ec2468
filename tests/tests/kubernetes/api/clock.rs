//! A runner on a machine whose clock differs from the API server's.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::ApiProxy;

use crate::rig::{INPUT, RECLAIM_AFTER, Setup};

/// The machine's clock is behind, for example because it is not set yet. The runner must still
/// write a correct reclaim-after, the time after which a pod may be deleted. Otherwise runners with
/// a correct clock would delete this runner's pods at once.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_runner_uses_the_api_servers_clock() {
    let setup = Setup::new().await;
    let proxy = ApiProxy::start(&setup.cluster, 0).await;
    proxy.set_clock_ahead(3600);
    let kubeconfig = proxy.kubeconfig(&setup.sandbox);
    let runner = setup.namespace.runner_as(&setup.sandbox, kubeconfig, &[&setup.image], &[]).await;
    Client::new(runner.address()).call(&setup.image, INPUT).await.output();
    let reclaim_after =
        |pods: &[Pod]| pods.first()?.annotations().get(RECLAIM_AFTER)?.parse::<Timestamp>().ok();
    let lapse = setup.namespace.wait_until("a pod", reclaim_after).await.duration_since(Timestamp::now());
    assert!((lapse - SignedDuration::from_mins(90)).abs() < SignedDuration::from_secs(30), "{lapse:?}");
    let metrics = runner.page("/metrics").await.1;
    let ahead = metrics.lines().find_map(|line| line.strip_prefix("porch_fn_runner_clock_ahead_seconds "));
    let ahead: f64 = ahead.and_then(|seconds| seconds.parse().ok()).expect("a figure");
    assert!((ahead - 3600.0).abs() < 10.0, "{ahead}");
    assert!(runner.log().contains("the API server's clock is ahead of this machine's"), "{}", runner.log());
}
