//! The kind FunctionConfig is installed in the cluster and removed again. This affects all tests of
//! the cluster.

use porch_fn_tests::process::{Server, eventually};
use serde_json::json;

use crate::api::function_configs::{KIND, Stand, install, pods_of};
use crate::rig::Bench;

const NONE: &str = "the cluster has no FunctionConfigs";

async fn uninstall(bench: &Bench) {
    bench.kubectl(&["delete", "--ignore-not-found", "--timeout=50s", KIND], "").await;
}

/// Waits until the log has reported this many times that there are no FunctionConfigs.
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
    uninstall(&stand.bench).await;
    let runner = stand.runner().await;
    has_none(&runner, 1).await;
    for times in 2..4 {
        install(&stand.bench).await;
        stand.configs.apply("a", json!({}), pods_of("a")).await;
        stand.configs.applied("a").await;
        uninstall(&stand.bench).await;
        has_none(&runner, times).await;
    }
}
