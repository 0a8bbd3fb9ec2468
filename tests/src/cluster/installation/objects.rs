//! The objects of an installation.

use serde_json::{Value, json};

use super::{ADMIN_PORT, Discovery, PORT, Plan, ROUTER, ROUTERS, RUNNERS, SERVICE};
use crate::cluster::ENTRYPOINT;

pub(super) const NAME_LABEL: &str = "app.kubernetes.io/name";
const IMAGE_METADATA: &str = "image-metadata";

/// The Service that Porch calls, and the headless one of the runners.
pub(super) fn services() -> Vec<Value> {
    let service = |name: &str, of: &str, ip: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {
                "clusterIP": ip,
                "selector": {NAME_LABEL: of},
                "ports": [{"name": "grpc", "port": PORT}],
            },
        })
    };
    let mut router = service(SERVICE, ROUTER, Value::Null);
    if let Some(spec) = router["spec"].as_object_mut() {
        spec.remove("clusterIP");
    }
    vec![router, service(RUNNERS, RUNNERS, json!("None"))]
}

/// What `--image-metadata` reads.
pub(super) fn image_metadata(images: &[String]) -> Vec<Value> {
    let images: Vec<_> =
        images.iter().map(|image| json!({"image": image, "entrypoint": [ENTRYPOINT]})).collect();
    let data = json!({"images.yaml": json!({"images": images}).to_string()});
    vec![json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": IMAGE_METADATA}, "data": data})]
}

pub(super) fn router(plan: &Plan, home: &str) -> Vec<Value> {
    let mut flags = vec![format!("--runners={}", target(plan, home)), format!("--router-count={}", ROUTERS)];
    flags.extend(plan.router_flags.iter().cloned());
    let container = container("router", "/porch-fn-router", &plan.router_image, &flags);
    vec![deployment(ROUTER, Some(ROUTERS), &container, &[])]
}

pub(super) fn runners(plan: &Plan, home: &str, functions: &str, registry: &str) -> Vec<Value> {
    let mut flags = vec![format!("--peers={}", target(plan, home)), format!("--pod-namespace={functions}")];
    let mut volumes = Vec::new();
    if plan.listed_images.is_some() {
        flags.push("--image-metadata=/etc/porch-fn/images.yaml".into());
        volumes.push(json!({"name": IMAGE_METADATA, "configMap": {"name": IMAGE_METADATA}}));
    } else {
        flags.push(format!("--insecure-registries={registry}"));
    }
    flags.extend(plan.runner_flags.iter().cloned());
    let mut container = container("runner", "/porch-fn-runner", &plan.runner_image, &flags);
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    container["env"] = json!([
        field("POD_IP", "status.podIP"),
        field("POD_NAMESPACE", "metadata.namespace"),
        {"name": "WRAPPER_SERVER_IMAGE", "value": plan.wrapper_image},
    ]);
    if !volumes.is_empty() {
        container["volumeMounts"] = json!([{"name": IMAGE_METADATA, "mountPath": "/etc/porch-fn"}]);
    }
    vec![deployment(RUNNERS, None, &container, &volumes)]
}

fn target(plan: &Plan, home: &str) -> String {
    match plan.discovery {
        Discovery::Dns => format!("dns:///{RUNNERS}.{home}.svc.cluster.local:{PORT}"),
        Discovery::EndpointSlices => format!("kubernetes:///{home}/{RUNNERS}:{PORT}"),
    }
}

fn container(name: &str, program: &str, image: &str, flags: &[String]) -> Value {
    let probe = |path: &str, period: u32| json!({"httpGet": {"path": path, "port": ADMIN_PORT}, "periodSeconds": period});
    json!({
        "name": name,
        "image": image,
        // A name may stand for another build by now.
        "imagePullPolicy": "Always",
        "command": [program],
        "args": flags,
        "ports": [{"name": "grpc", "containerPort": PORT}, {"name": "admin", "containerPort": ADMIN_PORT}],
        "readinessProbe": probe("/readyz", 1),
        "livenessProbe": probe("/healthz", 10),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

/// Without a number of replicas, applying it again leaves as many as there are.
fn deployment(name: &str, replicas: Option<u32>, container: &Value, volumes: &[Value]) -> Value {
    let labels = json!({NAME_LABEL: name});
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "terminationGracePeriodSeconds": 330,
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    });
    if let Some(replicas) = replicas {
        deployment["spec"]["replicas"] = json!(replicas);
    }
    deployment
}
