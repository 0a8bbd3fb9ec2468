//! Runners whose functions run in sandboxes inside their own pods (`components/sandboxes`).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, ROUTER, RUNNERS};
use porch_fn_tests::process::eventually;
use porch_fn_tests::rights::FUNCTIONS;
use serde_json::json;

use super::deploy::DeploySetup;
use crate::rig::{INPUT, Setup};

const HOST_USERS: &str = "path: /spec/template/spec/hostUsers\n      value: true";
const PRIVILEGED: &str = "/securityContext\n      value: {privileged: true}";

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_component_runs_functions_without_function_pods() {
    let setup = DeploySetup::new(Cluster::connect().await).await;
    let folder = setup.with(&["sandboxes"]);
    setup.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-k", &folder]).await;
    let edit = |file: &str, from: &str, to: &str| {
        let file = Path::new(&folder).join(file);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(file, text.replace(from, to)).unwrap();
    };
    // The node is too small for three runners that also run functions.
    edit("runners.yaml", "replicas: 3", "replicas: 1");
    // The node's containerd has no user namespaces for pods.
    let component = "components/sandboxes/kustomization.yaml";
    edit(component, "path: /spec/template/spec/hostUsers\n      value: false", HOST_USERS);
    edit(component, "/securityContext/procMount\n      value: Unmasked", PRIVILEGED);
    setup.kubectl(&["apply", "-k", &folder]).await;
    setup.rolled_out(&[RUNNERS, ROUTER]).await;
    setup.call_each(&setup.images).await;
    assert_eq!(setup.kubectl(&["-n", FUNCTIONS, "get", "pods", "-o", "name"]).await, "");
    setup.uninstall(&folder).await;
    setup.wait_uninstalled().await;
    setup.delete_namespaces().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_without_the_rights_says_which_it_needs() {
    let setup = Setup::new().await;
    let insecure = format!("--insecure-registries={}", setup.cluster.registry());
    let pod = json!({
        "metadata": {"name": "runner"},
        "spec": {
            "volumes": [{"name": "images", "emptyDir": {}}],
            "securityContext": {"fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "runner", "image": setup.cluster.programs_image(), "imagePullPolicy": "Always",
                "command": ["/porch-fn-runner"],
                "args": ["--pod-backend=sandbox", "--address=0.0.0.0", "--image-dir=/images/store", insecure],
                "volumeMounts": [{"name": "images", "mountPath": "/images"}],
            }],
        },
    });
    setup.namespace.make::<Pod>(pod).await;
    let address = |pods: &[Pod]| pods[0].status.as_ref()?.pod_ip.as_ref()?.parse().ok();
    let ip = setup.namespace.wait_until("the pod has an address", address).await;
    let client = Client::new(SocketAddr::new(ip, 9445));
    eventually("the runner listens", async || client.health("").await.ok()).await;
    let answer = client.call(&setup.image, INPUT).await;
    assert!(answer.message.contains("hostUsers: false"), "{answer:?}");
    let logs = setup.cluster.kubectl_ok(&["-n", setup.namespace.name(), "logs", "runner"], "").await;
    let logs = String::from_utf8_lossy(&logs.stdout);
    assert!(logs.contains("hostUsers: false"), "{logs}");
}
