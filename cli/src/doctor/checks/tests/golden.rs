//! The whole report on Porch 1.5, 1.6 and the next version: their real manifests with those of
//! deploy/ beside them, as applied and after Porch was led to the routers.

use std::path::PathBuf;

use super::super::super::finding::text;
use super::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The objects of the YAML files in a folder.
fn objects_in(folder: &str) -> Vec<Value> {
    let mut files: Vec<PathBuf> = fs::read_dir(Path::new(ROOT).join(folder))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let documents = |file: &PathBuf| -> Vec<Value> {
        serde_saphyr::from_multiple(&fs::read_to_string(file).unwrap()).unwrap()
    };
    files.iter().flat_map(documents).collect()
}

/// All replicas are ready. Volumes have octal modes, which YAML 1.2 does not know, and nobody looks
/// at them.
fn settled(mut deployment: Value) -> Value {
    deployment["spec"]["template"]["spec"]["volumes"] = json!(null);
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
    deployment["status"] = json!({"replicas": replicas, "readyReplicas": replicas});
    deployment
}

struct Cluster(Vec<Value>);

impl Cluster {
    fn of(version: &str) -> Self {
        let mut all = objects_in(&format!("tests/packages/porch/{version}"));
        all.extend(objects_in("deploy"));
        Self(all)
    }

    fn container(&mut self, deployment: &str) -> &mut Value {
        let spec = &mut self.deployment(deployment)["spec"];
        &mut spec["template"]["spec"]["containers"][0]
    }

    fn deployment(&mut self, name: &str) -> &mut Value {
        let of_name =
            |object: &&mut Value| object["kind"] == "Deployment" && object["metadata"]["name"] == name;
        self.0.iter_mut().find(of_name).unwrap()
    }

    /// As the README has it: the flag leads to the routers, and Porch's runner is stopped.
    fn lead_server(&mut self, more: &[&str]) {
        let args = self.container("porch-server")["args"].as_array_mut().unwrap();
        args.retain(|arg| !arg.as_str().unwrap().starts_with("--function-runner="));
        args.push(json!("--function-runner=function-router:9445"));
        args.extend(more.iter().map(|flag| json!(flag)));
        self.deployment("function-runner")["spec"]["replicas"] = json!(0);
    }

    fn lead_controllers(&mut self, variable: &str) {
        let env = self.container("porch-controllers")["env"].as_array_mut().unwrap();
        env.retain(|one| one["name"] != variable);
        env.push(json!({"name": variable, "value": "function-router.porch-system:9445"}));
    }

    fn check(&self, name: &str) {
        let of_kind = |kind: &str| -> Vec<Value> {
            self.0.iter().filter(|object| object["kind"] == kind).cloned().collect()
        };
        let deployments: Vec<Value> = of_kind("Deployment").into_iter().map(settled).collect();
        let services: Vec<Value> = of_kind("Service");
        let in_home = |object: &Value| object["metadata"]["namespace"] == "porch-system";
        assert!(deployments.iter().chain(&services).all(in_home));
        let mut facts = facts_of(&json!({"deployments": deployments, "services": services}));
        facts.runners.push(runner("runner-c", "10.0.0.3"));
        let addresses = ["10.0.0.1:9445", "10.0.0.2:9445", "10.0.0.3:9445"];
        facts.routers = vec![router("router-a", &addresses), router("router-b", &addresses)];
        let found = text(&all(&facts));
        let file = format!("src/doctor/checks/tests/golden/{name}.txt");
        let expected =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file)).unwrap_or_default();
        assert_eq!(found, expected, "cli/{file} is to be:\n{found}");
    }
}

#[test]
fn on_porch_1_5() {
    let mut cluster = Cluster::of("1.5");
    cluster.check("1.5-beside");
    cluster.lead_server(&[]);
    cluster.check("1.5-led");
}

#[test]
fn on_porch_1_6() {
    let mut cluster = Cluster::of("1.6");
    cluster.check("1.6-beside");
    cluster.lead_server(&[]);
    cluster.lead_controllers("FUNCTION_RUNNER_ADDRESS");
    cluster.check("1.6-led");
}

#[test]
fn on_the_next_porch() {
    let mut cluster = Cluster::of("next");
    cluster.check("next-beside");
    cluster.lead_controllers("POD_EVALUATOR_ADDRESS");
    cluster.check("next-controllers-led");
    cluster.lead_server(&["--warm-up-pod-cache=false"]);
    cluster.check("next-led");
}
