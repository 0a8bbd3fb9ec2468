//! A FunctionConfig changes only the functions of its image. `min-replicas` is tested in
//! runner/pool and with local pods.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt;
use porch_fn_tests::process::eventually;
use serde_json::{Value, json};
use tonic::Code;

use super::function_configs::{Configs, install};
use crate::rig::{INPUT, Setup, function, template};

/// One function: its image (`setup.image`), and a FunctionConfig with the function's name.
struct Function {
    setup: Setup,
    configs: Configs,
    name: &'static str,
}

// === impl Function ===

impl Function {
    async fn new(name: &'static str) -> Self {
        let mut setup = Setup::new().await;
        install(&setup).await;
        setup.image = setup.cluster.function_named(&format!("configs/{name}:v1")).await;
        Self { configs: Configs::of(&setup.namespace), setup, name }
    }

    async fn apply(&self, annotations: Value, executors: Value) {
        let mut spec = json!({"image": self.name, "prefixes": [self.prefix()]});
        spec.as_object_mut().unwrap().extend(executors.as_object().unwrap().clone());
        self.configs.apply(self.name, annotations, spec).await;
    }

    fn prefix(&self) -> String {
        format!("{}/configs", self.setup.cluster.registry())
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn template_overrides_change_only_the_pods_of_their_image() {
    let function_of = Function::new("overridden").await;
    let setup = &function_of.setup;
    // The overrides must not affect this image, which has the same name in another repository.
    let foreign = setup.cluster.function_named("elsewhere/overridden:v1").await;
    setup.namespace.make::<ServiceAccount>(json!({"metadata": {"name": "functions"}})).await;
    setup.write_template(&template(&setup.cluster, &["/tools/wrapper-server"])).await;
    let resources = json!({"limits": {"memory": "70Mi"}, "requests": {"cpu": "3m", "memory": "60Mi"}});
    let overrides = json!({
        "container": {"env": [{"name": "C", "value": "over"}, {"name": "NEW", "value": "n"}], "resources": resources},
        "initContainer": {"env": [{"name": "I", "value": "i"}]},
        "serviceAccountName": "functions",
        "securityContext": {"fsGroup": 1234},
    });
    function_of.apply(json!({}), json!({"podExecutor": {"templateOverrides": overrides}})).await;
    let runner = setup.runner_with("template", &[&setup.image, &foreign], &[]).await;
    function_of.configs.wait_applied(function_of.name).await;
    runner.call_ok().await;
    runner.client.call(&foreign, INPUT).await.output();

    let parts = async |image: &str| {
        let pod = setup.pod_of(image).await;
        let (function, spec) = (function(&pod), pod.spec.as_ref().unwrap());
        let env: Vec<_> = function.env.iter().flatten().map(|variable| variable.name.clone()).collect();
        let init = spec.init_containers.as_ref().unwrap()[0].env.as_ref().map(Vec::len);
        let group = spec.security_context.as_ref().and_then(|context| context.fs_group);
        // The override does not replace this field of the template.
        assert_eq!(pod.labels()["team"], "network");
        (env, init, group, spec.service_account_name.clone(), json!(function.resources))
    };
    let (env, init, group, account, of_container) = parts(&setup.image).await;
    assert_eq!((env, init, group), (vec!["C".to_owned(), "NEW".to_owned()], Some(1), Some(1234)));
    assert_eq!((account.as_deref(), of_container), (Some("functions"), resources));
    let (env, init, group, account, _) = parts(&foreign).await;
    assert_eq!((env, init, group), (vec!["C".to_owned()], None, None));
    assert_eq!(account.as_deref(), Some("default"));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_executable_runs_for_its_tags_alone() {
    let function_of = Function::new("executable").await;
    let setup = &function_of.setup;
    let program = setup.sandbox.script("program", "cat > /dev/null; echo 'kind: Executed'");
    let runner = setup.runner(&[]).await;
    let image = format!("{}/executable:v9", function_of.prefix());
    let foreign = format!("{}/elsewhere/executable:v9", setup.cluster.registry());
    function_of.apply(json!({}), json!({"binaryExecutor": {"tags": ["v9"], "path": program}})).await;
    function_of.configs.wait_applied(function_of.name).await;
    eventually("the executable is run", async || {
        let answer = runner.client.call(&image, INPUT).await;
        (answer.code == Code::Ok).then(|| assert_eq!(answer.output(), "kind: Executed\n"))
    })
    .await;
    runner.call_ok().await;
    let answer = runner.client.call(&foreign, INPUT).await;
    assert_ne!(answer.code, Code::Ok, "there is no such image");

    function_of.configs.delete("executable").await;
    eventually("the executable is no longer run", async || {
        (runner.client.call(&image, INPUT).await.code != Code::Ok).then_some(())
    })
    .await;
}
