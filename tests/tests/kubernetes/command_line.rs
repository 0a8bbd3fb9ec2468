//! porch-fn by kubeconfig, as those use it who look after an installation: the test of deploy/ calls this on what it has
//! installed.

use std::process::Output;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use porch_fn_tests::process::{binary, eventually};
use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME};
use serde_json::{Value, json};

use super::calls::INPUT;
use super::deploy::Stand;

/// Runs porch-fn; with the cluster's kubeconfig it is told of no namespace, Porch's is the default.
async fn porch_fn(stand: &Stand, args: &[&str], stdin: &[u8]) -> Output {
    let kubeconfig = stand.cluster.kubeconfig().to_str().unwrap();
    let way = ["--kubeconfig", kubeconfig];
    let args = args[..1].iter().chain(&way).chain(&args[1..]);
    stand.sandbox.run(binary("porch-fn"), args, stdin).await
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// What doctor finds that is not as it should be, and whether it calls that a failure.
pub(super) async fn doctor(stand: &Stand) -> (Vec<Value>, bool) {
    let ended = porch_fn(stand, &["doctor", "-o", "json"], b"").await;
    let findings: Vec<Value> =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{}", text(&ended.stderr)));
    let faults = findings.into_iter().filter(|finding| finding["level"] != "ok");
    (faults.collect(), ended.status.success())
}

/// The faults of one level.
fn texts<'a>(faults: &'a [Value], level: &str) -> Vec<&'a str> {
    let of_level = faults.iter().filter(|finding| finding["level"] == level);
    of_level.map(|finding| finding["text"].as_str().unwrap()).collect()
}

/// Waits until doctor finds exactly these problems. Of a right that has been taken or given, the API server that it asks
/// hears a moment later.
async fn finds(stand: &Stand, problems: &[&str]) {
    eventually(&format!("doctor finds {problems:?}"), async || {
        let (faults, success) = doctor(stand).await;
        let found = texts(&faults, "problem") == problems && success == problems.is_empty();
        if !found {
            eprintln!("doctor finds {faults:?}");
        }
        found.then_some(())
    })
    .await;
}

/// Calls and looks at an installation of three runners, breaks it, and has it mended again.
pub(super) async fn looks_after(stand: &Stand) {
    let image = stand.images[0].as_str();
    let called = porch_fn(stand, &["eval", "--image", image, "--package", "-"], INPUT.as_ref()).await;
    assert!(called.status.success(), "{}", text(&called.stderr));
    assert_eq!(called.stdout, INPUT.as_ref() as &[u8]);
    let refused = porch_fn(stand, &["eval", "--image", "NO", "--package", "-"], INPUT.as_ref()).await;
    assert!(!refused.status.success());

    // Discovery may be seconds behind what has just been rolled out.
    eventually("all three shards are well", async || {
        let shards = porch_fn(stand, &["shards"], b"").await;
        (text(&shards.stdout).matches("   healthy   ").count() == 3).then_some(())
    })
    .await;
    let config = porch_fn(stand, &["config", image], b"").await;
    assert!(text(&config.stdout).contains("--max-parallel-pods-per-function"), "{}", text(&config.stdout));
    let nowhere = porch_fn(stand, &["shards", "-n", "default"], b"").await;
    assert_eq!(
        text(&nowhere.stderr),
        "porch-fn shards: there is no Service function-router in namespace default: see -n, or apply deploy/\n"
    );

    let faults = eventually("the doctor finds nothing but that there is no Porch", async || {
        let (faults, success) = doctor(stand).await;
        (success && faults.len() == 1).then_some(faults)
    })
    .await;
    assert_eq!(texts(&faults, "warning"), ["nothing in namespace porch-system calls a function runner"]);

    finds_what_is_broken(stand).await;
    cleans_up_after_the_original(stand).await;
}

async fn finds_what_is_broken(stand: &Stand) {
    let selector = r#"{"spec": {"selector": {"app": "function-runner"}}}"#;
    stand.kubectl(&["-n", HOME, "patch", "service", "function-router", "-p", selector]).await;
    let role = r#"[{"op": "remove", "path": "/rules/0/verbs/0"}]"#;
    let patch = ["-n", FUNCTIONS, "patch", "role", "function-runner-shards", "--type=json", "-p", role];
    stand.kubectl(&patch).await;
    let problems = [
        "Service function-router does not lead to Deployment function-router",
        "ServiceAccount function-runner-shards may not create pods in porch-fn-system",
    ];
    finds(stand, &problems).await;
    // A selector is merged: the label that came in has to be taken out.
    let selector = r#"{"spec": {"selector": {"app": null}}}"#;
    stand.kubectl(&["-n", HOME, "patch", "service", "function-router", "-p", selector]).await;
    stand.kubectl(&["apply", "-k", DEPLOY]).await;
    finds(stand, &[]).await;
}

async fn cleans_up_after_the_original(stand: &Stand) {
    // As Porch makes them for a call: the pod's name is generated from its label, which is the Service's name.
    const ID: &str = "left-v1-1-01234567";
    const NAME: &str = "left-v1-1-01234567-x7k2p";
    let labels = json!({"fn.kpt.dev/image": ID});
    let pod = json!({
        "metadata": {
            "name": NAME, "labels": labels, "annotations": {"fn.kpt.dev/template-version": "inline-v1"},
        },
        // It is never started: no node takes it.
        "spec": {"containers": [{"name": "function", "image": "none"}], "nodeSelector": {"no": "where"}},
    });
    let service = json!({"metadata": {"name": ID}, "spec": {"selector": labels, "ports": [{"port": 9446}]}});
    let pods: Api<Pod> = Api::namespaced(stand.cluster.client(), FUNCTIONS);
    let services: Api<Service> = Api::namespaced(stand.cluster.client(), FUNCTIONS);
    let before: Vec<_> = names(&pods).await;
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();

    let (faults, _) = doctor(stand).await;
    assert!(
        texts(&faults, "info").iter().any(|text| text.starts_with("1 pods of Porch's evaluators")),
        "{faults:?}"
    );
    let listed = porch_fn(stand, &["doctor", "--clean-legacy"], b"").await;
    assert!(listed.status.success());
    assert_eq!(text(&listed.stdout), format!("pod/{NAME} in {FUNCTIONS}\nservice/{ID} in {FUNCTIONS}\n"));
    assert!(pods.get_opt(NAME).await.unwrap().is_some(), "nothing is deleted unasked");
    somebody_else_needs_them(stand).await;
    assert!(pods.get_opt(NAME).await.unwrap().is_some(), "nothing is deleted that is in use");
    let deleted = porch_fn(stand, &["doctor", "--clean-legacy", "--yes"], b"").await;
    assert!(deleted.status.success(), "{}", text(&deleted.stderr));
    eventually("the pod is gone, and its Service", async || {
        let pod = pods.get_opt(NAME).await.unwrap();
        let service = services.get_opt(ID).await.unwrap();
        (pod.is_none() && service.is_none()).then_some(())
    })
    .await;
    assert_eq!(names(&pods).await, before, "no other is touched");
}

/// While Porch's function runner in another namespace has its pods in the same one, nothing is deleted.
async fn somebody_else_needs_them(stand: &Stand) {
    const NAME: &str = "function-runner";
    let labels = json!({"app": "porchs-own"});
    let command = json!(["/home/nonroot/server", format!("--pod-namespace={FUNCTIONS}")]);
    // It is never started: no node takes it.
    let pod = json!({
        "containers": [{"name": NAME, "image": "none", "command": command}], "nodeSelector": {"no": "where"},
    });
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let deployment = json!({
        "metadata": {"name": NAME}, "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    let deployments: Api<Deployment> = Api::namespaced(stand.cluster.client(), "default");
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let refused = porch_fn(stand, &["doctor", "--clean-legacy", "--yes"], b"").await;
    deployments.delete(NAME, &DeleteParams::default()).await.unwrap();
    assert!(!refused.status.success());
    let reason = "Deployment function-runner in namespace default may be Porch's own function runner";
    assert!(text(&refused.stderr).contains(reason), "{}", text(&refused.stderr));
}

async fn names(pods: &Api<Pod>) -> Vec<String> {
    let mut names: Vec<_> =
        pods.list(&ListParams::default()).await.unwrap().items.iter().map(Pod::name_any).collect();
    names.sort();
    names
}
