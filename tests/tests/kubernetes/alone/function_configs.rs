//! A cluster whose FunctionConfigs come and go with their kind, for all who use it.

use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::process::{Sandbox, Server, eventually};
use serde_json::json;

use crate::api::function_configs::{KIND, Stand, install, pods_of};

const NONE: &str = "the cluster has no FunctionConfigs";

async fn uninstall(cluster: &Cluster, sandbox: &Sandbox) {
    let kubeconfig = cluster.kubeconfig();
    let args =
        ["--kubeconfig", kubeconfig.to_str().unwrap(), "delete", "--ignore-not-found", "--timeout=50s", KIND];
    let ended = sandbox.run("kubectl", args, b"").await;
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Waits until the log has said so often that there are none.
async fn has_none(runner: &Server, times: usize) {
    eventually("the runner sees that there are none", async || {
        (runner.log().matches(NONE).count() >= times).then_some(())
    })
    .await;
    assert_eq!(runner.log().matches(NONE).count(), times, "once each time");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_kind_may_come_and_go() {
    let stand = Stand::without_kind().await;
    let cluster = stand.namespace.cluster();
    uninstall(cluster, &stand.sandbox).await;
    let runner = stand.runner().await;
    has_none(&runner, 1).await;
    for times in 2..4 {
        install(cluster, &stand.sandbox).await;
        // Known to the API server a little later than it says.
        eventually("one can be made", async || {
            stand.configs.api.list(&kube::api::ListParams::default()).await.ok()
        })
        .await;
        stand.configs.apply("a", json!({}), pods_of("a")).await;
        stand.configs.applied("a").await;
        uninstall(cluster, &stand.sandbox).await;
        has_none(&runner, times).await;
    }
    install(cluster, &stand.sandbox).await;
}
