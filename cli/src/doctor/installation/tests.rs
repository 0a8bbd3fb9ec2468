//! How Deployments are recognised: `cases.yaml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

#[derive(Deserialize)]
struct Case {
    deployments: BTreeMap<String, Pods>,
    found: Vec<String>,
}

#[derive(Deserialize)]
struct Pods {
    replicas: Option<i32>,
    containers: Value,
}

fn deployment(name: &str, replicas: i32, containers: &Value) -> Deployment {
    let pod = json!({
        "serviceAccountName": "account", "terminationGracePeriodSeconds": 330, "containers": containers,
    });
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "home"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
        "status": {"readyReplicas": 2},
    }))
    .unwrap()
}

/// Describes in lines the parts of an installation that decide about findings.
fn described(deployments: &[Deployment]) -> Vec<String> {
    let found = installation(deployments);
    let evaluators = found.workloads.iter().filter_map(evaluator_of).map(|evaluator| {
        let namespaces =
            ["porch-fn-system", "functions", "x"].into_iter().filter(|name| evaluator.may_use(name));
        format!("{} may have pods in {}", evaluator.workload.name, namespaces.collect::<Vec<_>>().join(" "))
    });
    let mut lines: Vec<_> = evaluators.collect();
    lines.extend(found.router.iter().map(|router| {
        let flags =
            router.flags.as_ref().map(|flags| format!("at most {} bytes", flags.max_request_body_size));
        format!("router {}: {}", router.workload.name, described_flags(flags))
    }));
    lines.extend(found.runner.iter().map(|runner| {
        let porch = if runner.may_be_original { " (may be Porch's)" } else { "" };
        let flags = runner.flags.as_ref().map(|flags| {
            let (pods, wrapper) = (&flags.pod_namespace, &flags.wrapper_server_image);
            let (peers, waitlist) = (&flags.peers, flags.max_waitlist_length);
            format!("pods in {pods}, peers {peers}, wrapper {wrapper}, waitlist {waitlist}")
        });
        format!("runner {}{porch}: {}", runner.workload.name, described_flags(flags))
    }));
    lines.extend(found.originals.iter().map(|PorchRunner { workload, starts_pods }| {
        format!("original {}: {} pods, starts pods {starts_pods}", workload.name, workload.pods)
    }));
    lines.extend(found.callers.iter().map(|Caller { deployment, setting, address, max_message }| {
        format!("{deployment} calls {address} by {setting}: at most {max_message} bytes")
    }));
    lines.extend(found.without_evaluator.iter().map(|name| format!("{name} calls nothing and renders")));
    lines.extend(found.servers.iter().map(|Evaluator { workload, container, template, .. }| {
        format!("server {}: container {container}, template {template}", workload.name)
    }));
    lines
}

/// Returns the start of an error, without the program's name.
fn described_flags<E: AsRef<str>>(flags: Result<String, E>) -> String {
    flags.unwrap_or_else(|error| {
        let error = error.as_ref();
        let text = error.split_once(": ").map_or(error, |(_, text)| text);
        text.split(';').next().unwrap_or_default().to_owned()
    })
}

#[test]
fn deployments_are_recognised() {
    for Case { deployments, found } in
        serde_saphyr::from_str::<Vec<Case>>(include_str!("cases.yaml")).unwrap()
    {
        let deployments = deployments.iter();
        let deployments: Vec<_> = deployments
            .map(|(name, pods)| deployment(name, pods.replicas.unwrap_or(3), &pods.containers))
            .collect();
        assert_eq!(described(&deployments), found);
    }
}

#[test]
fn other_containers_hide_nothing() {
    let waitlist = "--max-waitlist-length=7";
    let server = json!({"name": "runner", "command": ["/home/nonroot/server", waitlist]});
    let of_image = json!({"name": "runner", "args": ["--pod-namespace=porch-fn-system", waitlist]});
    let ours = json!({"name": "runner", "command": ["/porch-fn-runner"], "args": [waitlist]});
    // The sidecar must not be taken for a program of Porch that calls a function runner.
    let agent =
        json!({"name": "agent", "args": ["--max-waitlist-length=3", "--function-runner=elsewhere:9445"]});
    let shell = json!({"name": "agent", "command": ["/bin/sh", "-c", "sleep 1d"]});
    for program in [&server, &of_image, &ours] {
        for other in [&agent, &shell] {
            for order in [json!([program, other]), json!([other, program])] {
                let found = installation(&[deployment("function-runner", 3, &order)]);
                assert!(found.originals.is_empty() && found.callers.is_empty(), "{order}");
                assert_eq!(found.runner.unwrap().flags.unwrap().max_waitlist_length, 7, "{order}");
            }
        }
    }
}

#[test]
fn without_a_value_the_namespace_is_the_pods() {
    let home =
        json!([{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]);
    let settings = json!([{"configMapRef": {"name": "settings"}}]);
    for (env, env_from, expected) in [(home, json!([]), "home"), (json!([]), settings, "")] {
        let container =
            json!({"name": "x", "command": ["/porch-fn-runner"], "env": env, "envFrom": env_from});
        let runner = installation(&[deployment("r", 3, &json!([container]))]).runner.unwrap();
        assert_eq!(runner.flags.unwrap().namespace, expected);
    }
}
