//! Doctor's whole report on Porch 1.5, 1.6 and the next version, before and after Porch calls the
//! routers. The objects are those of the real manifests of Porch and of deploy/.

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

/// Marks all replicas as ready. Removes volumes: their octal modes are not YAML 1.2, and no check
/// reads them.
fn settled(mut deployment: Value) -> Value {
    deployment["spec"]["template"]["spec"]["volumes"] = json!(null);
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
    deployment["status"] = json!({"replicas": replicas, "readyReplicas": replicas});
    deployment
}

fn deployment<'a>(objects: &'a mut [Value], name: &str) -> &'a mut Value {
    let named = |object: &&mut Value| object["kind"] == "Deployment" && object["metadata"]["name"] == name;
    objects.iter_mut().find(named).unwrap()
}

fn container<'a>(objects: &'a mut [Value], name: &str) -> &'a mut Value {
    &mut deployment(objects, name)["spec"]["template"]["spec"]["containers"][0]
}

/// Makes porch-server call the routers and stops Porch's runner, like docs/migrate.md.
fn redirect_server(objects: &mut [Value], more: &[&str]) {
    let args = container(objects, "porch-server")["args"].as_array_mut().unwrap();
    args.retain(|arg| !arg.as_str().unwrap().starts_with("--function-runner="));
    args.extend(["--function-runner=function-router:9445"].iter().chain(more).map(|flag| json!(flag)));
    deployment(objects, "function-runner")["spec"]["replicas"] = json!(0);
}

fn redirect_controllers(objects: &mut [Value], variable: &str) {
    let env = container(objects, "porch-controllers")["env"].as_array_mut().unwrap();
    env.retain(|one| one["name"] != variable);
    env.push(json!({"name": variable, "value": "function-router.porch-system:9445"}));
}

fn check(objects: &[Value], version: &str, step: &str) {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind).cloned();
    let deployments: Vec<Value> = of_kind("Deployment").map(settled).collect();
    let services: Vec<Value> = of_kind("Service").collect();
    let in_porch_system = |object: &Value| object["metadata"]["namespace"] == "porch-system";
    assert!(deployments.iter().chain(&services).all(in_porch_system));
    let mut facts = facts_of(&json!({"deployments": deployments, "services": services}));
    facts.runners.push(runner("runner-c", "10.0.0.3"));
    let addresses = ["10.0.0.1:9445", "10.0.0.2:9445", "10.0.0.3:9445"];
    facts.routers = vec![router("router-a", &addresses), router("router-b", &addresses)];
    let found = text(&all(&facts));
    let file = Path::new(ROOT).join(format!("cli/src/doctor/checks/tests/golden/{version}-{step}.txt"));
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, expected, "{} must be:\n{found}", file.display());
}

#[test]
fn reports_on_each_porch_version_before_and_after_each_step_of_the_migration() {
    type Step = (&'static str, fn(&mut [Value]));
    let cases: [(&str, &[Step]); 3] = [
        ("1.5", &[("redirected", |objects| redirect_server(objects, &[]))]),
        (
            "1.6",
            &[("redirected", |objects| {
                redirect_server(objects, &[]);
                redirect_controllers(objects, "FUNCTION_RUNNER_ADDRESS");
            })],
        ),
        (
            "next",
            &[
                ("controllers-redirected", |objects| redirect_controllers(objects, "POD_EVALUATOR_ADDRESS")),
                ("redirected", |objects| redirect_server(objects, &["--warm-up-pod-cache=false"])),
            ],
        ),
    ];
    for (version, steps) in cases {
        let mut objects = objects_in(&format!("tests/packages/porch/{version}"));
        objects.extend(objects_in("deploy"));
        check(&objects, version, "beside");
        for (step, redirect) in steps {
            redirect(&mut objects);
            check(&objects, version, step);
        }
    }
}
