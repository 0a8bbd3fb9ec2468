//! Migrates from Porch's function runner to this one and rolls back, without a failed call. The
//! commands are those of docs/migrate.md. For Porch 1.5, the test switches Porch's Service; for
//! Porch 1.6 and the next version, it changes settings of Porch's programs.
//!
//! Porch's own programs do not run here. The test applies the Deployments, Services, accounts and
//! Roles of Porch's manifests, but their pods run a stand-in (tests/clients/go/cmd/porch), which
//! makes calls and shuts down like Porch's programs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, ResourceExt};
use porch_fn_tests::cluster::{Cluster, ROUTER, alive};
use porch_fn_tests::process::{binary, eventually};
use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME, objects};
use serde_json::{Value, json};

use crate::alone::deploy::DeploySetup;
use crate::alone::deploy::command_line::doctor;
use crate::alone::porch::{Porch, Version, function_config};

const PAGE: &str = include_str!("../../../../docs/migrate.md");
/// The name of Porch's own function runner.
const ORIGINAL: &str = "function-runner";
/// The addresses that Porch's programs call: `PORCHS` before the migration, `OURS` after it.
const PORCHS: &str = "function-runner:9445";
const OURS: &str = "function-router:9445";
const OURS_IN_FULL: &str = "function-router.porch-system.svc.cluster.local:9445";
/// The doctor command reports this for every porch-server of the next version.
const EXECUTABLES_ALONE: &str = "porch-server evaluates functions in its own pods, except functions whose FunctionConfig names an executable";
const PORCH_SERVERS: &str = "api.porch-system.svc.cluster.local:9447";

/// The blocks of commands under this heading of docs/migrate.md.
fn commands(heading: &str) -> Vec<&'static str> {
    let (_, section) =
        PAGE.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("{heading} is there"));
    let section = ["\n## ", "\n### "]
        .into_iter()
        .fold(section, |section, next| section.split_once(next).map_or(section, |(section, _)| section));
    let blocks: Vec<_> =
        section.split("```sh\n").skip(1).map(|block| block.split_once("```").unwrap().0).collect();
    assert!(!blocks.is_empty(), "{heading} has commands");
    blocks
}

// === impl DeploySetup ===

impl DeploySetup {
    /// Runs commands of docs/migrate.md at the root of the repository.
    async fn run_commands(&self, commands: &str) {
        let script = format!("set -euo pipefail\ncd {DEPLOY}/..\n{commands}");
        let mut command = self.sandbox.command("bash");
        let programs = binary("porch-fn").parent().unwrap().to_owned();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        command.args(["-c", &script]).env("KUBECONFIG", self.cluster.kubeconfig()).env("PATH", path);
        let ended = command.output().await.unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{commands}\n{stderr}");
        // Allowed on stderr: kubectl warns about objects that `kubectl apply` did not create. It
        // finds no pods to wait for, because Porch's stand-in starts none. porch-fn prints notes
        // for the user.
        let parts = [
            "last-applied-configuration annotation",
            "no matching resources found",
            "porch-fn porch-config: ",
        ];
        let unexpected = |line: &&str| !parts.iter().any(|part| line.contains(part));
        assert_eq!(stderr.lines().filter(unexpected).collect::<Vec<_>>(), Vec::<&str>::new(), "{commands}");
    }

    /// Runs all blocks of commands under a heading.
    async fn run_section(&self, heading: &str) {
        for block in commands(heading) {
            self.run_commands(block).await;
        }
    }

    /// Creates the objects that Porch's evaluators leave behind for an image: a pod with a
    /// generated name, and a Service named by the pod's image label.
    async fn legacy_pod(&self, id: &str, template_version: &str) -> Pod {
        let labels = json!({"fn.kpt.dev/image": id});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "generateName": format!("{id}-"), "namespace": FUNCTIONS, "labels": labels,
                "annotations": {"fn.kpt.dev/template-version": template_version},
            },
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "function", "image": self.cluster.wrapper_image(),
                "command": ["/wrapper-server/wrapper-server", "--idle"],
            }]},
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": id, "namespace": FUNCTIONS},
            "spec": {"selector": labels, "ports": [{"port": 9446, "targetPort": 9446}]},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, service]}).to_string();
        let file = self.sandbox.write("legacy.json", list);
        let made = self.kubectl(&["create", "-f", file.to_str().unwrap(), "-o", "name"]).await;
        let name = made.lines().find_map(|line| line.strip_prefix("pod/")).unwrap();
        self.function_pods().get(name).await.unwrap()
    }

    /// Whether the pod exists, and whether its Service exists.
    async fn exists(&self, legacy: &Pod) -> (bool, bool) {
        let services: Api<Service> = Api::namespaced(self.cluster.client(), FUNCTIONS);
        let pod = self.function_pods().get_opt(&legacy.name_any()).await.unwrap();
        let service = services.get_opt(&legacy.labels()["fn.kpt.dev/image"]).await.unwrap();
        (pod.is_some_and(|pod| alive(&pod) && pod.uid() == legacy.uid()), service.is_some())
    }

    /// Waits until the doctor command reports exactly these findings about Porch.
    async fn wait_doctor_reports(&self, expected: &[&str]) {
        eventually(&format!("doctor reports {expected:?}"), async || {
            let (findings, _) = doctor(self).await;
            let of_porch = findings.iter().filter(|finding| finding["check"] == "Porch");
            let texts: BTreeSet<_> = of_porch.map(|finding| finding["text"].as_str().unwrap()).collect();
            let expected = expected.iter().copied().collect();
            if texts != expected {
                eprintln!("doctor reports {findings:#?}");
            }
            (texts == expected).then_some(())
        })
        .await;
    }

    fn function_pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), FUNCTIONS)
    }

    /// The name and the spec of each FunctionConfig.
    async fn function_configs(&self) -> Vec<(Value, Value)> {
        let list = self.kubectl(&["-n", FUNCTIONS, "get", "functionconfigs", "-o", "json"]).await;
        let mut list: Value = serde_json::from_str(&list).unwrap();
        let items = list["items"].as_array_mut().unwrap();
        items.iter_mut().map(|item| (item["metadata"]["name"].take(), item["spec"].take())).collect()
    }

    /// Creates Porch's pod template with an image that the test's registry has. Returns the
    /// template's version.
    async fn create_template(&self) -> String {
        let file = Version::V1_6.folder().join("22-function-templates.yaml");
        let mut template = objects(&file).remove(0);
        template["template"]["spec"]["initContainers"][0]["image"] = json!(self.cluster.wrapper_image());
        let file = self.sandbox.write("template.json", template.to_string());
        let version = "jsonpath={.metadata.resourceVersion}";
        self.kubectl(&["create", "-f", file.to_str().unwrap(), "-o", version]).await
    }

    /// The names of the ports of Porch's Service.
    async fn ports(&self) -> Value {
        let path = "jsonpath={.spec.ports[*].name}";
        json!(self.kubectl(&["-n", HOME, "get", "service", ORIGINAL, "-o", path]).await)
    }

    /// Asserts that our own objects are gone and that Porch's exist.
    async fn assert_only_porch_left(&self) {
        let left = self.kubectl(&["-n", HOME, "get", "deployments,services", "-o", "name"]).await;
        assert!(!left.contains(ROUTER) && !left.contains("shards"), "{left}");
        assert!(left.contains("deployment.apps/function-runner"), "{left}");
    }
}

/// Changes a setting of porch-server and one of porch-controllers. Porch 1.5 has only the first.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn porch_1_6_migrates_and_rolls_back_without_a_failed_call() {
    let cluster = Cluster::connect().await;
    let setup = DeploySetup::new(cluster).await;
    let porch = Porch::install(&setup, Version::V1_6, &setup.images[..2]).await;
    // The controllers call no function runner until a setting names one.
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    let legacy = setup.legacy_pod("function-0-v1-1-0123abcd", "inline-v1").await;

    setup.run_section("Install").await;
    setup.call_each(&setup.images[..2]).await;
    setup
        .wait_doctor_reports(&["porch-server calls function-runner:9445 (--function-runner), which is Porch's own function runner"])
        .await;
    setup.run_section("Point porch-server at the routers (Porch 1.5 and 1.6)").await;
    setup.run_section("Point porch-controllers at the routers (Porch 1.6)").await;
    let ours: &[(&str, &[&str])] = &[("porch-server", &[OURS]), ("porch-controllers", &[OURS])];
    porch.wait_calls_to(ours).await;
    let [stop, clean] = commands("Stop Porch's function runner").try_into().unwrap();
    setup.run_commands(stop).await;
    wait_pods_gone(&setup, "app=function-runner").await;
    porch.wait_calls_to(ours).await;
    porch.assert_nothing_failed("migrated");

    setup.wait_doctor_reports(&[]).await;

    // The pod and the Service that Porch's runner left behind still exist.
    assert_eq!(setup.exists(&legacy).await, (true, true));
    setup.run_commands(clean).await;
    eventually("the pod and its Service are gone", async || {
        (setup.exists(&legacy).await == (false, false)).then_some(())
    })
    .await;

    // The commands of the rollback wait for a pod that Porch's runner starts. This is that pod.
    setup.legacy_pod("function-1-v1-1-0123abcd", "inline-v1").await;
    setup.run_section("Roll back Porch 1.5 and 1.6").await;
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    setup.run_section("Remove").await;
    setup.assert_only_porch_left().await;
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    porch.assert_nothing_failed("migrated and rolled back");
    setup.delete_namespaces().await;
}

/// Switches Porch's Service to our routers and back.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_service_of_porch_1_5_is_taken_over_and_given_back() {
    let cluster = Cluster::connect().await;
    let setup = DeploySetup::new(cluster).await;
    let porch = Porch::install(&setup, Version::V1_5, &setup.images[..2]).await;
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    let names = setup.ports().await;
    // `apply` merges the new selector into the old one. So a separate command must switch the
    // Service.
    let taken_over = setup.with(&["take-over-1.5"]);
    let selector = "jsonpath={.items[?(@.metadata.name==\"function-runner\")].spec.selector}";
    let merged = setup.run(&["apply", "--dry-run=server", "-k", &taken_over, "-o", selector]).await.stdout;
    let both = json!({"app": ORIGINAL, "app.kubernetes.io/name": ROUTER});
    assert_eq!(serde_json::from_slice::<Value>(&merged).unwrap(), both);

    setup.run_section("Install").await;
    let [take_over, give_back] = commands("Take over the Service instead").try_into().unwrap();
    setup.run_commands(take_over).await;
    wait_pods_gone(&setup, "app=function-runner").await;
    // The user keeps the component in the kustomization; applying it again must change no port.
    setup.run(&["apply", "-k", &taken_over]).await;
    assert_eq!(setup.ports().await, names, "no port is renamed");
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    porch.assert_nothing_failed("Service taken over");

    setup.legacy_pod("function-1-v1-1-0123abcd", "inline-v1").await;
    setup.run_commands(give_back).await;
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    setup.run_section("Remove").await;
    porch.wait_calls_to(&[("porch-server", &[PORCHS])]).await;
    porch.assert_nothing_failed("Service taken over and given back");
    setup.delete_namespaces().await;
}

async fn wait_pods_gone(setup: &DeploySetup, label: &str) {
    setup.kubectl(&["-n", HOME, "wait", "pod", "-l", label, "--for=delete", "--timeout=5m"]).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn porchs_next_version_migrates_and_rolls_back_without_a_failed_call() {
    let cluster = Cluster::connect().await;
    let setup = DeploySetup::new(cluster).await;
    // When porch-server starts, it adopts the pod of the present template. It does not use the pod
    // of an older template.
    let template = setup.create_template().await;
    let unused = setup.legacy_pod("function-0-v1-1-0123abcd", "1").await;
    let adopted = setup.legacy_pod("function-1-v1-1-0123abcd", &template).await;
    let porch = Porch::install(&setup, Version::Next, &setup.images[..3]).await;
    // The third function has no FunctionConfig.
    let configs: Vec<_> =
        ["function-0", "function-1"].map(|name| function_config(name, "porch-fn.example/deployed")).into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": configs}).to_string();
    let file = setup.sandbox.write("function-configs.json", list);
    setup.kubectl(&["apply", "-f", file.to_str().unwrap()]).await;
    let before = setup.function_configs().await;
    let as_shipped: &[(&str, &[&str])] =
        &[("porch-server", &["itself"]), ("porch-controllers", &[PORCH_SERVERS])];
    porch.wait_calls_to(as_shipped).await;

    setup.run_section("Install").await;
    setup.call_each(&setup.images[..3]).await;
    setup
        .wait_doctor_reports(&[
            "porch-server calls function-runner:9445 (--function-runner), which is Porch's own function runner and \
             runs only executables",
            "porch-controllers calls api.porch-system.svc.cluster.local:9447 (POD_EVALUATOR_ADDRESS), which is \
             porch-server's own evaluator",
            EXECUTABLES_ALONE,
        ])
        .await;
    let [controllers, server] = commands("Point Porch's next version at the routers").try_into().unwrap();
    setup.run_commands(controllers).await;
    porch.wait_calls_to(&[("porch-server", &["itself"]), ("porch-controllers", &[OURS_IN_FULL])]).await;
    setup.run_commands(server).await;
    porch.wait_calls_to(&[("porch-server", &["itself", OURS]), ("porch-controllers", &[OURS_IN_FULL])]).await;
    porch.assert_nothing_failed("migrated");
    let idle = "Porch's own function runner still runs: Deployment function-runner, 1 replicas";
    setup.wait_doctor_reports(&[idle, EXECUTABLES_ALONE]).await;
    // This must keep the pods of the present template: porch-server still uses them.
    setup.run_commands("porch-fn doctor --clean-legacy --yes").await;
    eventually("the unused pod is gone", async || (!setup.exists(&unused).await.0).then_some(())).await;
    assert_eq!(setup.exists(&adopted).await, (true, true));

    setup.run_section("Roll back Porch's next version").await;
    porch.wait_calls_to(as_shipped).await;
    assert_eq!(setup.function_configs().await, before, "no FunctionConfig has changed");
    setup.run_section("Remove").await;
    setup.assert_only_porch_left().await;
    porch.wait_calls_to(as_shipped).await;
    porch.assert_nothing_failed("migrated and rolled back");
    setup.delete_namespaces().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_single_runner_replaces_porchs_runner() {
    let cluster = Cluster::connect().await;
    let [apply, _remove] = commands("One runner in place of Porch's").try_into().unwrap();
    for version in [Version::V1_5, Version::Next] {
        let setup = DeploySetup::new(cluster.clone()).await;
        let _porch = Porch::install(&setup, version, &setup.images[..2]).await;
        let names = setup.ports().await;
        setup.run_commands(apply).await;
        setup.rolled_out(&[ORIGINAL]).await;
        assert_eq!(setup.ports().await, names, "{version}");
        setup.call_each_at(ORIGINAL, &setup.images[..2]).await;
        setup.delete_namespaces().await;
    }
}
