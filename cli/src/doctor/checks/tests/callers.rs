//! The addresses that Porch calls: every way that one can lead.

use super::*;

/// The installation, with Porch's own runner, its Service, and porch-server's own evaluator beside it.
fn beside_porch() -> Value {
    let mut objects = objects();
    let container = json!({"name": "x", "image": "x/porch-function-runner:v1", "args": ["--pod-namespace=porch-fn-system"]});
    let template =
        json!({"metadata": {"labels": {"app": "function-runner"}}, "spec": {"containers": [container]}});
    let runner =
        json!({"metadata": {"name": "function-runner"}, "spec": {"selector": {}, "template": template}});
    let deployments = objects["deployments"].as_array_mut().unwrap();
    deployments.push(runner);
    deployments[2]["spec"]["template"]["metadata"]["labels"] = json!({"app": "porch-server"});
    let services = objects["services"].as_array_mut().unwrap();
    for (name, app, port) in [("function-runner", "function-runner", 9445), ("api", "porch-server", 9447)] {
        let spec = json!({"selector": {"app": app}, "ports": [{"port": port}]});
        services.push(json!({"metadata": {"name": name}, "spec": spec}));
    }
    objects
}

/// The findings of porch-server's call to `address`.
fn of(objects: &Value, address: &str, more: &[&str]) -> Vec<(Level, String)> {
    let mut objects = objects.clone();
    let flag = format!("--function-runner={address}");
    *objects.pointer_mut(CALLER).unwrap() = json!([&[flag.as_str()], more].concat());
    let findings = all(&facts_of(&objects)).into_iter().filter(|finding| finding.check == "Porch");
    findings.map(|finding| (finding.level, finding.text)).collect()
}

#[test]
fn an_address_is_followed_to_the_pods_behind_it() {
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
        let found = of(&objects, &address, &[]);
        let expected = (level, format!("porch-server calls {address} (--function-runner){end}"));
        assert_eq!(found.last(), Some(&expected));
        // Unless a call to it says so already.
        let still =
            found[0].1.starts_with("Porch's own function runner still runs: Deployment function-runner, 1");
        assert_eq!(still, !end.ends_with("Porch's own function runner"), "{found:?}");
    }
    let mut ours = objects();
    ours["services"][0]["spec"] = json!({"selector": {}, "ports": [{"port": 9445}]});
    let found: Vec<_> = faults(&facts_of(&ours)).into_iter().filter(|fault| fault.1 == "services").collect();
    let text = "Service function-router has no selector".to_owned();
    assert_eq!(found, [(Level::Unknown, "services", text)]);
}

#[test]
fn a_service_merged_of_two_is_reported_once() {
    let mut objects = beside_porch();
    let selector = json!({"app": "function-runner", "app.kubernetes.io/name": "function-router"});
    objects["services"][2]["spec"]["selector"] = selector;
    objects["deployments"].as_array_mut().unwrap().pop();
    *objects.pointer_mut(CALLER).unwrap() = json!(["--function-runner=function-runner:9445"]);
    let text = "Service function-runner does not lead to Deployment function-router";
    expect(&facts_of(&objects), Level::Problem, "services", text);
}

#[test]
fn an_evaluator_of_porch_server_is_named() {
    let address = "api.porch-system.svc.cluster.local:9447";
    let found = of(&beside_porch(), address, &["--pod-evaluator-port=9447"]);
    let text =
        format!("porch-server calls {address} (--function-runner), which is porch-server's own evaluator");
    assert_eq!(found[1], (Level::Info, text));
}
