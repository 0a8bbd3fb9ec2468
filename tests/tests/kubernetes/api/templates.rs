//! Valid and broken pod templates in a ConfigMap. Tests of the runner cover the template objects of
//! newer Porch versions, and `rights` covers the rights that they need.

use kube::ResourceExt;
use porch_fn_tests::process::eventually;
use serde_json::json;
use tonic::Code;

use crate::rig::{INPUT, Setup, VERSION, failed, template};

/// The template objects in the manifests of newer Porch versions.
const BASE: &str = include_str!("../../../../runner/config/src/template/base-templates.yaml");
const WRAPPER: &str = "docker.io/nephio/porch-wrapper-server:latest";

// === impl Setup ===

impl Setup {
    /// Creates the template objects of newer Porch. Their Service template differs from the
    /// runner's built-in one.
    pub(super) async fn apply_base_templates(&self) {
        self.apply_crd("servicetemplates").await;
        let text = BASE
            .replace(WRAPPER, &self.cluster.wrapper_image())
            .replace("porch-fn-system", self.namespace.name())
            .replace("type: ClusterIP", "type: ClusterIP\n    sessionAffinity: ClientIP");
        self.kubectl(&["apply", "-f", "-"], &text).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_broken_template_is_reported_and_does_not_replace_a_valid_one() {
    let setup = Setup::new().await;
    let other = setup.cluster.function_named("templates/other:v1").await;
    let good = template(&setup.cluster, &["/tools/wrapper-server"]);
    let mut broken = good.clone();
    broken["spec"]["containers"][0]["name"] = json!("functions");
    setup.write_template(&broken).await;
    let runner = setup.runner_with("template", &[&setup.image, &other], &[]).await;
    let answer = runner.call(INPUT).await;
    let reason = "ConfigMap template of --function-pod-template: key template: no container is named \"function\" \
                  (point 1 of";
    assert_eq!(answer.code, Code::Unknown);
    assert!(answer.message.starts_with(&failed(&setup.image, reason)), "{answer:?}");
    assert_eq!(setup.pods().await, []);

    setup.write_template(&good).await;
    eventually("a good template is used", async || (runner.call(INPUT).await.code == Code::Ok).then_some(()))
        .await;

    setup.write_template(&broken).await;
    runner.server.wait_log("kept=true").await;
    runner.call_ok().await;
    // New pods are still made from the last valid template.
    runner.client.call(&other, INPUT).await.output();
    let pods = setup.pods().await;
    let version = |pod: usize| pods[pod].annotations()[VERSION].as_str();
    assert!(version(0).starts_with("configmap-") && version(0) == version(1), "{pods:#?}");
}
