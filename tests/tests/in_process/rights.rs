//! Which manifests grant rights and to whom, and that Porch's own manifests grant as much.
//! tests/kubernetes/api/rights.rs tests that runners need all of these rights and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use porch_fn_tests::rights::{
    BASE, DEPLOY, FUNCTIONS, HOME, POD_TEMPLATE, PRIVATE_REGISTRIES, Right, Roles, SINGLE_RUNNER, objects,
};
use serde_json::{Value, json};

/// All YAML files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found
}

/// The rights that Porch 1.6 grants to its own function runner in the function namespace.
fn originals() -> Roles {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/porch/1.6/5-rbac.yaml");
    let mut roles = objects(&file);
    roles
        .retain(|object| object["metadata"]["name"] == "porch-function-executor" && object["kind"] == "Role");
    Roles::from(roles.into_iter().map(|role| serde_json::from_value(role).unwrap()).collect::<Vec<_>>())
}

#[test]
fn nothing_else_is_granted() {
    let mut roles = BTreeSet::new();
    for file in files(Path::new(DEPLOY)) {
        let name = file.strip_prefix(DEPLOY).unwrap().to_str().unwrap().to_owned();
        for object in objects(&file) {
            let group = object["apiVersion"].as_str().unwrap_or_default();
            if !group.starts_with("rbac.authorization.k8s.io/") {
                continue;
            }
            match object["kind"].as_str().unwrap() {
                "Role" => drop(roles.insert(name.clone())),
                "RoleBinding" => is_for_runners(&name, &object),
                // No right is granted for the whole cluster.
                other => panic!("{name} has a {other}"),
            }
        }
    }
    let known = [BASE, POD_TEMPLATE, PRIVATE_REGISTRIES, SINGLE_RUNNER].map(str::to_owned);
    assert_eq!(roles, BTreeSet::from(known));
}

/// Routers have no rights.
fn is_for_runners(file: &str, binding: &Value) {
    let account = if file == SINGLE_RUNNER { "porch-fn-runner" } else { "function-runner-shards" };
    let subject = json!([{"kind": "ServiceAccount", "name": account, "namespace": "porch-system"}]);
    assert_eq!(binding["subjects"], subject, "{file}");
}

#[test]
fn the_single_runner_has_the_rights_of_the_base_and_its_components() {
    let single: BTreeSet<_> = Roles::of(&[SINGLE_RUNNER]).rights();
    let shards = Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES]).rights();
    // The single runner's ConfigMap may have any name, like that of Porch's own runner.
    let any_map = |right: &Right| {
        let all = right.of_all();
        if all == Right::new("get configmaps") { all } else { right.clone() }
    };
    assert_eq!(single, shards.iter().map(any_map).collect());
}

#[test]
fn the_original_grants_all_that_is_granted_here() {
    let originals = originals().rights();
    assert!(originals.len() > 30);
    // Porch's documentation of `--function-pod-template` grants this right.
    let own = Right::new("get configmaps");
    for right in Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES, SINGLE_RUNNER]).rights() {
        let right = right.of_all();
        assert!(right == own || originals.contains(&right), "{right}");
    }
}

/// The rollback to Porch's runner deletes by this label. It must delete the rights that Porch does
/// not have, and none of Porch's objects.
#[test]
fn the_single_runners_label_is_on_its_rights_alone() {
    let mut removed = BTreeSet::new();
    for file in files(&Path::new(DEPLOY).join("single-runner")) {
        for object in objects(&file) {
            let metadata = &object["metadata"];
            let labelled = metadata["labels"]["app.kubernetes.io/part-of"] == "porch-function-runner";
            let rights = object["apiVersion"]
                .as_str()
                .is_some_and(|group| group.starts_with("rbac.authorization.k8s.io/"));
            assert_eq!(labelled, rights, "{} {}", object["kind"], metadata["name"]);
            if rights {
                assert_eq!(metadata["name"], "single-function-runner");
                removed.insert(metadata["namespace"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(removed, BTreeSet::from([HOME, FUNCTIONS].map(str::to_owned)));
}
