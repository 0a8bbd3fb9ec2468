//! Installs the kind FunctionConfig in the cluster and removes it again. This affects all tests of
//! the cluster.

use porch_fn_tests::process::{Server, eventually};
use serde_json::json;

use crate::api::function_configs::{Configs, install, pods_of};
use crate::rig::Setup;

const KIND: &str = "crd/functionconfigs.config.porch.kpt.dev";
const NONE: &str = "the cluster has no FunctionConfigs";

async fn uninstall(setup: &Setup) {
    setup.kubectl(&["delete", "--ignore-not-found", "--timeout=50s", KIND], "").await;
}

/// Waits until the log contains this many messages that there are no FunctionConfigs.
async fn wait_none_reported(runner: &Server, times: usize) {
    eventually("the runner sees that there are none", async || {
        (runner.log().matches(NONE).count() >= times).then_some(())
    })
    .await;
    assert_eq!(runner.log().matches(NONE).count(), times, "once each time");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_function_config_crd_can_be_installed_and_removed() {
    let setup = Setup::new().await;
    let configs = Configs::of(&setup.namespace);
    uninstall(&setup).await;
    let runner = setup.namespace.runner(&setup.sandbox, &[], &["--scan-interval=1s"]).await;
    wait_none_reported(&runner, 1).await;
    for times in 2..4 {
        install(&setup).await;
        configs.apply("a", json!({}), pods_of("a")).await;
        configs.wait_applied("a").await;
        uninstall(&setup).await;
        wait_none_reported(&runner, times).await;
    }
}
