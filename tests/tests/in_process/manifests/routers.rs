//! Asserts that routers find and reach each other for the status page.

use std::path::Path;

use porch_fn_tests::rights::{DEPLOY, HOME, list, manifest, objects};
use serde_json::json;

/// A Service with an address of its own would lead to one router only.
#[test]
fn routers_find_and_reach_each_other() {
    let all = objects(&Path::new(DEPLOY).join("router.yaml"));
    let of_kind = |kind: &str, found: &str| {
        let found = all.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == found);
        found.unwrap_or_else(|| panic!("{kind}"))["spec"].clone()
    };
    let (pod, service) =
        (&of_kind("Deployment", "function-router")["template"], &of_kind("Service", "function-router-peers"));
    let flag = format!("--router-peers=dns:///function-router-peers.{HOME}:9464");
    assert!(list(&pod["spec"]["containers"][0]["args"]).any(|arg| *arg == json!(flag)), "{flag}");
    let labels = &pod["metadata"]["labels"];
    assert_eq!((&service["clusterIP"], &service["ports"][0]["port"]), (&json!("None"), &json!(9464)));
    assert!(service["selector"].as_object().unwrap().iter().all(|(label, value)| labels[label] == *value));
    let policy = &manifest("components/network-policies/calls.yaml")["spec"];
    let to_router = json!([{"podSelector": policy["podSelector"]}]);
    let admin = json!([{"port": 9464}]);
    assert!(list(&policy["ingress"]).any(|rule| (&rule["from"], &rule["ports"]) == (&to_router, &admin)));
    assert!(list(&policy["egress"]).any(|rule| (&rule["to"], &rule["ports"]) == (&to_router, &admin)));
}
