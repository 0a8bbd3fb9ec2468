//! Which manifests grant rights, to whom, and that Porch's own grant as much. That runners need all
//! of them and no other, tests/kubernetes/api/rights.rs shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use porch_fn_tests::rights::{
    BASE, DEPLOY, FUNCTIONS, HOME, POD_TEMPLATE, PRIVATE_REGISTRIES, Right, Roles, SINGLE_RUNNER, objects,
};
use serde_json::{Value, json};

/// Every file of YAML below a folder.
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

/// What the original's Role allows in the function namespace, as newer Porch's manifests have it.
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
                // Nothing is granted in the whole cluster.
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
    // Its ConfigMap may have any name, as the original's.
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
    // Porch's documentation of `--function-pod-template` grants it.
    let own = Right::new("get configmaps");
    for right in Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES, SINGLE_RUNNER]).rights() {
        let right = right.of_all();
        assert!(right == own || originals.contains(&right), "{right}");
    }
}

/// Going back to Porch's runner: by the label go the rights that Porch does not have, and nothing
/// of Porch's.
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
