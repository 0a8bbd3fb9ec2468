//! Tests of the addresses that Porch calls, with every possible destination.

use super::*;

/// The installation with Porch's own runner and its Service.
fn beside_porch() -> Value {
    let mut objects = objects();
    let container = json!({"name": "x", "image": "x/porch-function-runner:v1", "args": ["--pod-namespace=porch-fn-system"]});
    let template =
        json!({"metadata": {"labels": {"app": "function-runner"}}, "spec": {"containers": [container]}});
    let runner =
        json!({"metadata": {"name": "function-runner"}, "spec": {"selector": {}, "template": template}});
    let deployments = objects["deployments"].as_array_mut().unwrap();
    deployments.push(runner);
    let spec = json!({"selector": {"app": "function-runner"}, "ports": [{"port": 9445}]});
    let services = objects["services"].as_array_mut().unwrap();
    services.push(json!({"metadata": {"name": "function-runner"}, "spec": spec}));
    objects
}

#[test]
fn an_address_is_resolved_to_the_pods_behind_it() {
    #[derive(Deserialize)]
    struct Case {
        address: String,
        spec: Option<Value>,
        level: Level,
        end: String,
    }
    for Case { address, spec, level, end } in data::<Vec<Case>>("addresses.yaml") {
        let mut objects = beside_porch();
        if let Some(spec) = spec {
            objects["services"][2]["spec"] = spec;
        }
        *objects.pointer_mut(CALLER).unwrap() = json!([format!("--function-runner={address}")]);
        let findings = all(&facts_of(&objects)).into_iter().filter(|finding| finding.check == "Porch");
        let found: Vec<_> = findings.map(|finding| (finding.level, finding.text)).collect();
        let expected = (level, format!("porch-server calls {address} (--function-runner){end}"));
        assert_eq!(found.last(), Some(&expected));
        // The warning is absent if the finding about the call already names that runner.
        let still =
            found[0].1.starts_with("Porch's own function runner still runs: Deployment function-runner, 1");
        assert_eq!(still, !end.ends_with("Porch's own function runner"), "{found:?}");
    }
}
