//! Applies deploy/ over Porch's own objects, mostly by dry runs. The tests cover each version of
//! Porch's manifests, applied by kubectl and by server-side apply.

use std::collections::BTreeSet;

use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::rights::{DEPLOY, HOME};
use serde_json::{Value, json};

use super::deploy::{DeploySetup, copy_folder};
use super::porch::Version;

const VERSIONS: [Version; 3] = [Version::V1_5, Version::V1_6, Version::Next];
/// How Porch is installed: by `kubectl apply`, which records what it applied in an annotation, or
/// by server-side apply like kpt, Flux and Config Sync.
const APPLY_FLAGS: [&[&str]; 2] = [&[], &["--server-side", "--field-manager=kpt"]];

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found =
        objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.next().unwrap_or_else(|| panic!("there is {kind} {name}"))
}

impl DeploySetup {
    /// Applies Porch's own manifests with zero replicas, because the cluster does not have Porch's
    /// images. Returns the file.
    async fn apply_manifests_of(&self, version: Version, flags: &[&str]) -> String {
        let mut all = version.objects();
        for deployment in all.iter_mut().filter(|object| object["kind"] == "Deployment") {
            deployment["spec"]["replicas"] = json!(0);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string();
        let file = self.sandbox.write("porch.json", list);
        let file = file.to_str().unwrap().to_owned();
        self.kubectl(&[&["apply", "-f", &file], flags].concat()).await;
        file
    }

    /// The objects that `kubectl apply -k` would create or change.
    async fn dry_run(&self, folder: &str) -> Vec<Value> {
        let ended = self.run(&["apply", "--dry-run=server", "-o", "json", "-k", folder]).await;
        let mut list: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let items = list["items"].as_array_mut().map(std::mem::take);
        items.unwrap_or_else(|| vec![list])
    }

    async fn object(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["-n", HOME, "get", kind, name, "-o", "json"]).await).unwrap()
    }

    /// The fields in which a server-side apply of a folder conflicts with Porch's field manager.
    async fn conflicts(&self, folder: &str) -> BTreeSet<String> {
        let ended =
            self.cluster.kubectl(&["apply", "--server-side", "--dry-run=server", "-k", folder], "").await;
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        let fields = stderr.split(['\n', ' ']).filter(|word| word.starts_with(".spec"));
        let fields: BTreeSet<_> = fields.map(str::to_owned).collect();
        assert_eq!(ended.status.success(), fields.is_empty(), "{folder}: {stderr}");
        fields
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn nothing_conflicts_no_port_is_renamed_and_no_probe_has_two_handlers() {
    let cluster = Cluster::connect().await;
    let setup = DeploySetup::new(cluster).await;
    for version in VERSIONS {
        for flags in APPLY_FLAGS {
            let what = format!("{version}, {flags:?}");
            let porch = setup.apply_manifests_of(version, flags).await;

            assert_eq!(setup.conflicts(DEPLOY).await, BTreeSet::new(), "{what}");
            setup.run(&["apply", "--dry-run=server", "-k", DEPLOY]).await;
            check_take_over(&setup, version, flags).await;
            check_single_runner(&setup, version, flags, &porch).await;
            if version == Version::Next {
                check_controllers_patch(&setup, &what).await;
            }
            setup.kubectl(&["delete", "--wait", "-o", "name", "-f", &porch]).await;
        }
    }
    setup.delete_namespaces().await;
}

/// The router takes over Porch's Service: only its selector changes.
async fn check_take_over(setup: &DeploySetup, version: Version, flags: &[&str]) {
    let component = if version == Version::V1_5 { "take-over-1.5" } else { "take-over" };
    let folder = setup.with(&[component]);
    let ports = |service: &Value| -> BTreeSet<(String, String)> {
        let ports = service["spec"]["ports"].as_array().unwrap();
        ports.iter().map(|port| (port["port"].to_string(), port["name"].to_string())).collect()
    };
    let before = setup.object("service", "function-runner").await;
    let applied = setup.dry_run(&folder).await;
    let after = named(&applied, "Service", "function-runner");
    assert_eq!(ports(after), ports(&before), "{version}");
    assert_eq!(after["spec"]["selector"]["app.kubernetes.io/name"], "function-router", "{version}");
    // The component must change this field of Porch's object. If kubectl applied Porch's object,
    // kubectl already manages the field, so there is no conflict.
    let selector = BTreeSet::from([".spec.selector".to_owned()]);
    let conflicts = if flags.is_empty() { BTreeSet::new() } else { selector };
    assert_eq!(setup.conflicts(&folder).await, conflicts, "{version}");
}

/// The single runner replaces the program in Porch's Deployment, and Porch's manifest restores it.
async fn check_single_runner(setup: &DeploySetup, version: Version, flags: &[&str], porch: &str) {
    let what = format!("{version}, {flags:?}");
    let folder = format!("{DEPLOY}/single-runner");
    let applied = setup.dry_run(&folder).await;
    let runner = named(&applied, "Deployment", "function-runner");
    let containers = runner["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{what}: no container is added");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
        let there: Vec<_> =
            handlers.iter().filter(|handler| !containers[0][probe][*handler].is_null()).collect();
        assert_eq!(there, [&"exec"], "{what}: {probe}");
    }
    let ports = containers[0]["ports"].as_array().unwrap();
    let numbers: BTreeSet<_> = ports.iter().map(|port| port["containerPort"].to_string()).collect();
    assert_eq!(numbers.len(), ports.len(), "{what}: {ports:?}");
    if !flags.is_empty() {
        // The single runner must replace these fields. It has the same command as Porch 1.6. The
        // number of replicas conflicts because this test has changed it.
        let container = ".spec.template.spec.containers[name=\"function-runner\"]";
        let mut fields = BTreeSet::from([
            ".spec.replicas".to_owned(),
            format!("{container}.image"),
            format!("{container}.resources.requests.memory"),
        ]);
        if version != Version::Next {
            fields.insert(format!("{container}.env[name=\"WRAPPER_SERVER_IMAGE\"].value"));
        }
        if version != Version::V1_6 {
            fields.insert(format!("{container}.command"));
        }
        if version == Version::V1_5 {
            fields.insert(format!("{container}.volumeMounts[mountPath=\"/pod-cache-config\"].name"));
        }
        assert_eq!(setup.conflicts(&folder).await, fields, "{what}");
        return;
    }
    let before = setup.object("deployment", "function-runner").await;
    setup.run(&["apply", "-k", &folder]).await;
    setup.run(&["apply", "-f", porch]).await;
    let after = setup.object("deployment", "function-runner").await;
    assert_eq!(after["spec"], before["spec"], "{what}");
}

/// A patch changes the address that Porch's controllers call. This test applies it by kustomize,
/// `nightly::migration` by kubectl.
async fn check_controllers_patch(setup: &DeploySetup, what: &str) {
    let controllers = Version::Next.folder().join("9-controllers.yaml");
    std::fs::copy(controllers, setup.sandbox.path("9-controllers.yaml")).unwrap();
    let component = format!("{DEPLOY}/porch/pod-evaluator-address");
    copy_folder(component.as_ref(), &setup.sandbox.path("pod-evaluator-address"));
    setup.sandbox.write(
        "kustomization.yaml",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [9-controllers.yaml]\n\
         components: [pod-evaluator-address]\n",
    );
    let folder = setup.sandbox.directory().to_str().unwrap();
    let applied = setup.dry_run(folder).await;
    let deployment = named(&applied, "Deployment", "porch-controllers");
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let mut addresses = variables.iter().filter(|variable| variable["name"] == "POD_EVALUATOR_ADDRESS");
    let ours = "function-router.porch-system.svc.cluster.local:9445";
    assert_eq!(addresses.next().unwrap()["value"], ours, "{what}");
    assert_eq!(addresses.next(), None, "{what}");
}
