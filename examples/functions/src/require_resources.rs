//! `require-resources`: a validator with structured results.

use serde_json::{Value, json};

use crate::resource_list::{ResourceList, annotation, is_local_config};

/// Kinds with a pod template, and the path of its containers.
const WORKLOADS: [(&str, &str); 6] = [
    ("Deployment", "/spec/template/spec/containers"),
    ("StatefulSet", "/spec/template/spec/containers"),
    ("DaemonSet", "/spec/template/spec/containers"),
    ("Job", "/spec/template/spec/containers"),
    ("CronJob", "/spec/jobTemplate/spec/template/spec/containers"),
    ("Pod", "/spec/containers"),
];

/// Refuses workloads whose containers request no cpu or memory; warns about missing memory limits.
pub fn require_resources(list: &mut ResourceList) -> Result<bool, String> {
    let results: Vec<Value> =
        list.list("items").iter().filter(|item| !is_local_config(item)).flat_map(check).collect();
    let errors = results.iter().filter(|result| result["severity"] == "error").count();
    if errors > 0 {
        eprintln!("{errors} resource requests are missing");
    }
    if !results.is_empty()
        && let Some(all) = list.list_mut("results")
    {
        all.extend(results);
    }
    Ok(errors == 0)
}

fn check(item: &Value) -> Vec<Value> {
    let kind = item["kind"].as_str().unwrap_or_default();
    let Some((_, pointer)) = WORKLOADS.iter().find(|(workload, _)| *workload == kind) else {
        return Vec::new();
    };
    let containers = item.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let field = pointer.trim_start_matches('/').replace('/', ".");
    let mut results = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let name = container["name"].as_str().unwrap_or_default();
        let wanted =
            [("error", "requests", "cpu"), ("error", "requests", "memory"), ("warning", "limits", "memory")];
        for (severity, part, resource) in wanted {
            if container["resources"][part][resource].is_null() {
                let path = format!("{field}[{index}].resources.{part}.{resource}");
                let message = format!("container {name:?} sets no {resource} in its {part}");
                results.push(result(item, severity, &path, &message));
            }
        }
    }
    results
}

fn result(item: &Value, severity: &str, path: &str, message: &str) -> Value {
    let mut reference = json!({
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
    });
    if let Some(namespace) = item["metadata"]["namespace"].as_str() {
        reference["namespace"] = json!(namespace);
    }
    let mut result = json!({
        "message": message,
        "severity": severity,
        "resourceRef": reference,
        "field": {"path": path},
    });
    if let Some(file) = annotation(item, "internal.config.kubernetes.io/path") {
        let index =
            annotation(item, "internal.config.kubernetes.io/index").and_then(|index| index.parse().ok());
        result["file"] = json!({"path": file, "index": index.unwrap_or(0u32)});
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(item: &str) -> (bool, Vec<Value>) {
        let mut list = ResourceList::parse(&format!("kind: ResourceList\nitems:\n- {item}")).unwrap();
        let accepted = require_resources(&mut list).unwrap();
        (accepted, list.list("results").to_vec())
    }

    const BARE: &str = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, annotations: \
        {internal.config.kubernetes.io/path: web.yaml, internal.config.kubernetes.io/index: '2'}}, \
        spec: {template: {spec: {containers: [{name: nginx, resources: {requests: {cpu: 1}}}]}}}}";

    #[test]
    fn missing_requests_are_errors_with_file_and_field() {
        let (accepted, results) = run(BARE);
        assert!(!accepted);
        let severities: Vec<_> = results.iter().map(|result| result["severity"].as_str().unwrap()).collect();
        assert_eq!(severities, ["error", "warning"]);
        assert_eq!(
            results[0],
            json!({
                "message": "container \"nginx\" sets no memory in its requests",
                "severity": "error",
                "resourceRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "shop"},
                "field": {"path": "spec.template.spec.containers[0].resources.requests.memory"},
                "file": {"path": "web.yaml", "index": 2},
            })
        );
    }

    #[test]
    fn complete_resources_and_other_kinds_are_accepted() {
        let complete = "{kind: Pod, spec: {containers: [{name: a, resources: {requests: {cpu: 1, memory: 1Mi}, \
                        limits: {memory: 1Mi}}}]}}";
        for item in [complete, "{kind: Service}", "{kind: Deployment}", "{kind: Deployment, spec: 3}"] {
            assert_eq!(run(item), (true, Vec::new()), "{item}");
        }
    }
}
