//! Tests which manifests grant rights, and that Porch itself grants all of these rights.
//! tests/kubernetes/api/rights.rs tests that runners need all of these rights and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use porch_fn_tests::rights::{
    BASE, DEPLOY, FUNCTIONS, HOME, POD_TEMPLATE, PRIVATE_REGISTRIES, Right, Roles, SINGLE_RUNNER, objects,
};
use serde_json::{Value, json};

/// All objects in the YAML files below a folder, with the paths of their files.
fn all_objects(folder: &Path) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_objects(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.strip_prefix(DEPLOY).unwrap().to_str().unwrap();
            found.extend(objects(&path).into_iter().map(|object| (name.to_owned(), object)));
        }
    }
    found
}

fn grants_rights(object: &Value) -> bool {
    let group = object["apiVersion"].as_str();
    group.is_some_and(|group| group.starts_with("rbac.authorization.k8s.io/"))
}

#[test]
fn only_known_manifests_grant_rights() {
    let mut roles = BTreeSet::new();
    let objects = all_objects(Path::new(DEPLOY)).into_iter();
    for (name, object) in objects.filter(|(_, object)| grants_rights(object)) {
        match object["kind"].as_str().unwrap() {
            "Role" => drop(roles.insert(name)),
            "RoleBinding" => assert_bound_to_runners(&name, &object),
            // No right is granted for the whole cluster.
            other => panic!("{name} has a {other}"),
        }
    }
    let known = [BASE, POD_TEMPLATE, PRIVATE_REGISTRIES, SINGLE_RUNNER].map(str::to_owned);
    assert_eq!(roles, BTreeSet::from(known));
}

/// Asserts that only the runners' `ServiceAccount` gets the rights. Routers have no rights.
fn assert_bound_to_runners(file: &str, binding: &Value) {
    let account = if file == SINGLE_RUNNER { "porch-fn-runner" } else { "function-runner-shards" };
    let subject = json!([{"kind": "ServiceAccount", "name": account, "namespace": "porch-system"}]);
    assert_eq!(binding["subjects"], subject, "{file}");
}

#[test]
fn the_single_runner_has_the_rights_of_the_base_and_its_components() {
    let single: BTreeSet<_> = Roles::of(&[SINGLE_RUNNER]).rights();
    let shards = Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES]).rights();
    // The single runner may read a ConfigMap of any name, like Porch's own runner.
    let any_map = |right: &Right| {
        let all = right.of_all();
        if all == Right::new("get configmaps") { all } else { right.clone() }
    };
    assert_eq!(single, shards.iter().map(any_map).collect());
}

#[test]
fn porch_grants_all_rights_that_our_manifests_grant() {
    // The rights of Porch 1.6's own function runner in the function namespace.
    let mut porchs = Roles::of(&["../tests/packages/porch/1.6/5-rbac.yaml"]);
    porchs.0.retain(|role| role.metadata.name.as_deref() == Some("porch-function-executor"));
    let porchs = porchs.rights();
    assert!(porchs.len() > 30);
    // Porch's documentation of `--function-pod-template` grants this right.
    let own = Right::new("get configmaps");
    for right in Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES, SINGLE_RUNNER]).rights() {
        let right = right.of_all();
        assert!(right == own || porchs.contains(&right), "{right}");
    }
}

/// The rollback to Porch's runner deletes this folder's objects that have the label `part-of`. They
/// must be the single runner's rights, and none of Porch's objects.
#[test]
fn only_the_rights_of_the_single_runner_have_its_label() {
    let mut removed = BTreeSet::new();
    for (_, object) in all_objects(&Path::new(DEPLOY).join("single-runner")) {
        let metadata = &object["metadata"];
        let labelled = metadata["labels"]["app.kubernetes.io/part-of"] == "porch-function-runner";
        assert_eq!(labelled, grants_rights(&object), "{} {}", object["kind"], metadata["name"]);
        if labelled {
            assert_eq!(metadata["name"], "single-function-runner");
            removed.insert(metadata["namespace"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(removed, BTreeSet::from([HOME, FUNCTIONS].map(str::to_owned)));
}
