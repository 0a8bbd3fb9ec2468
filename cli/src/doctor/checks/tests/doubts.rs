//! What may be well, or is said elsewhere, and must not be called worse than it is.

use super::*;

const ROUTER: &str = "/deployments/0/spec/template/spec/containers/0/args";
const RUNNER: &str = "/deployments/1/spec/template/spec/containers/0/args";
const CALLER: &str = "/deployments/2/spec/template/spec/containers/0/args";

fn with(changes: &[(&str, Value)]) -> Facts {
    let mut objects = objects();
    for (pointer, value) in changes {
        *objects.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.clone();
    }
    facts_of(&objects)
}

#[test]
fn tls_for_callers_is_for_those_who_call_us_and_may_be_a_meshs() {
    let runners = "--runners=dns:///function-runner-shards.porch-system:9445";
    let tls = json!([runners, "--router-count=2", "--listen-tls-cert=a", "--listen-tls-key=b"]);
    let text = "function-router has --listen-tls-cert, and porch-server dials in plain text".to_owned();
    assert_eq!(faults(&with(&[(ROUTER, tls.clone())])), [(Level::Warning, "flags", text)]);
    // A proxy, which is called in plain text.
    let facts = with(&[(ROUTER, tls), (CALLER, json!(["--function-runner=proxy:9445"]))]);
    let checks: Vec<_> = faults(&facts).into_iter().map(|fault| (fault.0, fault.1)).collect();
    assert_eq!(checks, [(Level::Warning, "Porch")]);
}

#[test]
fn the_runners_service_has_to_suit_dns_only_where_dns_is_asked() {
    let labels = json!({"app.kubernetes.io/name": "function-runner-shards"});
    let dual_stack = json!({"clusterIP": "10.1.1.1", "ipFamilies": ["IPv4", "IPv6"], "selector": labels});
    let count = |runners: &str, peers: &str| {
        let facts = with(&[
            (ROUTER, json!([format!("--runners={runners}"), "--router-count=2"])),
            (RUNNER, json!([format!("--peers={peers}")])),
            ("/services/1/spec", dual_stack.clone()),
        ]);
        faults(&facts).iter().filter(|fault| fault.1 == "services").count()
    };
    let dns = "dns:///function-runner-shards.porch-system:9445";
    let slices = "kubernetes:///porch-system/function-runner-shards:9445";
    let list = "static:///10.0.0.1:9445,10.0.0.2:9445";
    for (runners, peers, expected) in [
        (dns, dns, 2),
        ("function-runner-shards:9445", slices, 2),
        (slices, dns, 2),
        (slices, slices, 0),
        (list, list, 0),
        ("dns:///elsewhere:9445", slices, 0),
        ("dns:///function-runner-shards.elsewhere:9445", "", 0),
    ] {
        assert_eq!(count(runners, peers), expected, "{runners} {peers}");
    }
}

#[test]
fn router_counts_may_be_as_far_apart_as_an_autoscaler_moves_them() {
    for (told, there, well) in
        [(1, 2, false), (2, 6, true), (2, 7, false), (6, 2, true), (7, 2, false), (usize::MAX, 2, false)]
    {
        let runners = "--runners=dns:///function-runner-shards.porch-system:9445";
        let facts = with(&[
            (ROUTER, json!([runners, format!("--router-count={told}")])),
            ("/deployments/0/spec/replicas", json!(there)),
            ("/deployments/0/status/readyReplicas", json!(there)),
        ]);
        assert_eq!(faults(&facts).is_empty(), well, "{told} {there}");
    }
}

/// What is said when the runners call this source of their configuration invalid, and so many FunctionConfigs.
fn invalid(mut facts: Facts, source: &str, configs: usize) -> Vec<Finding> {
    for runner in &mut facts.runners {
        let answer = runner.answer.as_mut().unwrap();
        let configs = format!("function_config_problems {configs}");
        let metrics = answer.metrics.replace("function_config_problems 0", &configs);
        answer.metrics = format!("{metrics}porch_fn_runner_config_valid{{source=\"{source}\"}} 0\n");
    }
    all(&facts)
}

#[test]
fn function_configs_with_faults_are_told_once() {
    let found = invalid(facts(), "functionconfigs", 1);
    let found: Vec<_> = found.iter().filter(|finding| finding.level != Level::Ok).collect();
    let [Finding { level: Level::Warning, text, .. }] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(text, "on 2 of 2 runners: 1 FunctionConfigs have faults");
}

#[test]
fn templates_that_runners_refuse_have_their_names_and_are_not_well() {
    let said = |template, flag: &str| {
        let peers = "--peers=dns:///function-runner-shards.porch-system:9445";
        let args = json!([peers, format!("--function-pod-template={flag}")]);
        let facts = Facts { template, ..with(&[(RUNNER, args)]) };
        let found = invalid(facts, "function-pod-template", 0);
        assert!(found.iter().all(|finding| finding.check != "pod template"), "{found:?}");
        let fault = found.into_iter().find(|finding| finding.level != Level::Ok).unwrap();
        (fault.level, fault.text)
    };
    let problem = |text: &str| (Level::Problem, format!("on 2 of 2 runners: {text} cannot be used"));
    assert_eq!(said(Template::Object, ""), problem("base-pod-template or base-service-template"));
    let config_map = Template::ConfigMap("mine".to_owned(), Ok(Vec::new()));
    assert_eq!(said(config_map, "mine"), problem("--function-pod-template"));
}
