//! What breaks the cluster for all who use it: run last, one by one, and never on a user's cluster.

use std::time::Duration;

use porch_fn_tests::cluster::Cluster;
use tokio::time::timeout;

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_can_be_stopped_and_goes_on() {
    let cluster = Cluster::connect().await;
    let Some(own) = cluster.own() else { return };
    own.signal("kube-apiserver", "STOP").await;
    let silent = timeout(Duration::from_secs(1), cluster.client().apiserver_version()).await;
    own.signal("kube-apiserver", "CONT").await;
    assert!(silent.is_err(), "a stopped server does not answer");
    cluster.client().apiserver_version().await.unwrap();

    let listed = own.node(&["ctr", "-a", "/run/containerd/containerd.sock", "namespace", "ls"]).await;
    assert!(String::from_utf8_lossy(&listed.stdout).contains("k8s.io"));
}
