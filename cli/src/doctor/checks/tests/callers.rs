//! Whom Porch calls: every way that an address can lead.

use super::*;

/// The installation, with Porch's own runner, its Service, and porch-server's own evaluator beside it.
fn beside_porch() -> Value {
    let mut objects = objects();
    let pod = |image: &str, args: &[&str], label: &str| {
        let containers = json!([{"name": "x", "image": image, "command": null, "args": args}]);
        json!({"metadata": {"labels": {"app": label}}, "spec": {"containers": containers}})
    };
    let deployment = |name: &str, template: Value| json!({"metadata": {"name": name}, "spec": {"selector": {}, "template": template}});
    let deployments = objects["deployments"].as_array_mut().unwrap();
    let runner = pod("x/porch-function-runner:v1", &["--pod-namespace=porch-fn-system"], "function-runner");
    deployments.push(deployment("function-runner", runner));
    let server = &mut deployments[2]["spec"]["template"]["metadata"]["labels"];
    *server = json!({"app": "porch-server"});
    let service = |name: &str, app: &str, port: u16| json!({"metadata": {"name": name}, "spec": {"selector": {"app": app}, "ports": [{"port": port}]}});
    let services = objects["services"].as_array_mut().unwrap();
    services.push(service("function-runner", "function-runner", 9445));
    services.push(service("api", "porch-server", 9447));
    objects
}

/// What is found of porch-server's call to `address`.
fn of(objects: &Value, address: &str, more: &[&str]) -> Vec<(Level, String)> {
    let mut objects = objects.clone();
    let flag = format!("--function-runner={address}");
    let args: Vec<_> = std::iter::once(flag.as_str()).chain(more.iter().copied()).collect();
    objects["deployments"][2]["spec"]["template"]["spec"]["containers"][0]["args"] = json!(args);
    let findings = all(&facts_of(&objects)).into_iter().filter(|finding| finding.check == "Porch");
    findings.map(|finding| (finding.level, finding.text)).collect()
}

#[test]
fn our_service_is_known_by_its_selector_whatever_its_name() {
    let objects = beside_porch();
    let mut taken_over = objects.clone();
    taken_over["services"][2]["spec"]["selector"] = json!({"app.kubernetes.io/name": "function-router"});
    for (objects, address) in [
        (&objects, "function-router:9445"),
        (&objects, "function-router.porch-system:9445"),
        (&objects, "dns:///function-router.porch-system.svc.cluster.local.:9445"),
        (&taken_over, "function-runner:9445"),
        (&taken_over, "function-router.porch-system.svc:9445"),
    ] {
        let found = of(objects, address, &[]);
        let ok = (Level::Ok, format!("porch-server calls {address} (--function-runner)"));
        let still = (
            Level::Warning,
            "Porch's own function runner still runs: Deployment function-runner, 1 replicas".to_owned(),
        );
        assert_eq!(found, [still, ok]);
    }
}

#[test]
fn whoever_else_answers_is_named() {
    let objects = beside_porch();
    for (level, address, end) in [
        (Level::Warning, "function-runner:9445", ", which is Porch's own function runner"),
        (Level::Warning, "function-runner-shards:9445", ", which leads to Deployment function-runner-shards"),
        (Level::Problem, "function-router:9446", ", a port that Service function-router does not have"),
        (Level::Problem, "function-router", ", a port that Service function-router does not have"),
        (Level::Warning, "proxy:9445", ", which is not a Service of namespace porch-system"),
        (Level::Warning, "function-router.other:9445", ", which is not a Service of namespace porch-system"),
        (Level::Warning, "function-router.porch-system.example.com:9445", " of namespace porch-system"),
        (Level::Unknown, "$(RUNNER)", " (--function-runner)"),
    ] {
        let found = of(&objects, address, &[]).pop().unwrap();
        assert_eq!(found.0, level, "{found:?}");
        let start = format!("porch-server calls {address} (--function-runner)");
        assert!(found.1.starts_with(&start) && found.1.ends_with(end), "{found:?}");
    }
    let mut nobody = objects.clone();
    nobody["services"][2]["spec"]["selector"] = json!({"app": "gone"});
    let found = of(&nobody, "function-runner:9445", &[]).pop().unwrap();
    assert_eq!(found.0, Level::Warning);
    assert!(
        found.1.ends_with(", and Service function-runner selects pods of no Deployment here"),
        "{found:?}"
    );
}

/// Such as one of type `ExternalName`, or one whose Endpoints somebody else writes.
#[test]
fn where_a_service_without_a_selector_leads_is_unknown() {
    for spec in [
        json!({"type": "ExternalName", "externalName": "example.com"}),
        json!({"selector": {}, "ports": [{"port": 9445}]}),
    ] {
        let mut objects = beside_porch();
        objects["services"][2]["spec"] = spec.clone();
        let found = of(&objects, "function-runner:9445", &[]).pop().unwrap();
        assert_eq!(found.0, Level::Unknown, "{found:?}");
        assert!(found.1.ends_with(", and Service function-runner has no selector"), "{found:?}");
        objects["services"][0]["spec"] = spec;
        let services: Vec<_> =
            faults(&facts_of(&objects)).into_iter().filter(|fault| fault.1 == "services").collect();
        assert_eq!(services.len(), 1, "{services:?}");
        assert_eq!(
            (services[0].0, services[0].2.as_str()),
            (Level::Unknown, "Service function-router has no selector")
        );
    }
}

#[test]
fn a_service_merged_of_two_is_reported_once() {
    let mut objects = beside_porch();
    let selector = json!({"app": "function-runner", "app.kubernetes.io/name": "function-router"});
    objects["services"][2]["spec"]["selector"] = selector;
    objects["deployments"].as_array_mut().unwrap().pop();
    objects["deployments"][2]["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--function-runner=function-runner:9445"]);
    let text = "Service function-runner does not lead to Deployment function-router".to_owned();
    assert_eq!(faults(&facts_of(&objects)), [(Level::Problem, "services", text)]);
}

#[test]
fn porch_that_evaluates_itself_is_no_fault_and_says_how_to_change_it() {
    let mut objects = beside_porch();
    let runner = &mut objects["deployments"][3]["spec"]["template"]["spec"]["containers"][0];
    runner["args"] = json!([]);
    let next = ["--pod-evaluator-port=9447"];
    let found = of(&objects, "function-runner:9445", &next);
    let levels: Vec<_> = found.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Info, Level::Info], "{found:?}");
    assert!(found[0].1.ends_with("Porch's own function runner, for executables alone"), "{found:?}");
    assert!(found[1].1.starts_with("porch-server evaluates functions in pods of its own"), "{found:?}");
    let found = of(&objects, "api.porch-system.svc.cluster.local:9447", &next);
    assert!(found[1].1.ends_with("which is porch-server's own evaluator"), "{found:?}");
}
