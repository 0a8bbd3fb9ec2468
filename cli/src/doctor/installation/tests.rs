//! Tests which programs doctor recognises in Deployments. The cases are in `cases.yaml`.

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

/// Describes the parts of an installation that findings depend on, one per line.
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
        let porch = if found.may_be_original { " (may be Porch's)" } else { "" };
        let flags = runner.flags.as_ref().map(|_| {
            let flags = found.runner_flags.as_ref().unwrap();
            let (pods, wrapper) = (&flags.pod_namespace, &flags.wrapper_server_image);
            let (peers, waitlist) = (&flags.peers, flags.max_waitlist_length);
            let home = if flags.namespace.is_empty() { "" } else { ", namespace " };
            let home = format!("{home}{}", flags.namespace);
            format!("pods in {pods}, peers {peers}, wrapper {wrapper}, waitlist {waitlist}{home}")
        });
        format!("runner {}{porch}: {}", runner.workload.name, described_flags(flags))
    }));
    lines.extend(found.originals.iter().map(|original| {
        let starts_pods = evaluator_of(original).is_some();
        format!("original {}: {} pods, starts pods {starts_pods}", original.name, original.pods)
    }));
    lines.extend(found.callers.iter().map(|Caller { deployment, setting, address, max_message }| {
        format!("{deployment} calls {address} by {setting}: at most {max_message} bytes")
    }));
    lines.extend(found.without_evaluator.iter().map(|name| format!("{name} renders without an evaluator")));
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
