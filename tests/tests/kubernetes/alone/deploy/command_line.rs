//! Runs porch-fn with a kubeconfig, like the operator of an installation. The test in `deploy`
//! calls these functions.

use std::process::Output;

use porch_fn_tests::process::{binary, eventually};
use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME};
use serde_json::Value;

use super::DeploySetup;
use crate::rig::INPUT;

/// Runs porch-fn with the cluster's kubeconfig and without a namespace: Porch's namespace is the
/// default.
async fn porch_fn(setup: &DeploySetup, args: &[&str], stdin: &[u8]) -> Output {
    let path = setup.cluster.kubeconfig();
    let kubeconfig = ["--kubeconfig", path.to_str().unwrap()];
    let args = args[..1].iter().chain(&kubeconfig).chain(&args[1..]);
    setup.sandbox.run(binary("porch-fn"), args, stdin).await
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The faults that the doctor command reports, and whether it succeeds.
pub(crate) async fn doctor(setup: &DeploySetup) -> (Vec<Value>, bool) {
    let ended = porch_fn(setup, &["doctor", "-o", "json"], b"").await;
    let findings: Vec<Value> =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{}", text(&ended.stderr)));
    let faults = findings.into_iter().filter(|finding| finding["level"] != "ok");
    (faults.collect(), ended.status.success())
}

/// The texts of the faults of one level.
fn texts<'a>(faults: &'a [Value], level: &str) -> Vec<&'a str> {
    let of_level = faults.iter().filter(|finding| finding["level"] == level);
    of_level.map(|finding| finding["text"].as_str().unwrap()).collect()
}

/// Waits until the doctor command reports exactly these problems. It waits because the API server
/// applies a changed right only after a moment.
async fn wait_doctor_finds(setup: &DeploySetup, problems: &[&str]) {
    eventually(&format!("doctor finds {problems:?}"), async || {
        let (faults, success) = doctor(setup).await;
        let found = texts(&faults, "problem") == problems && success == problems.is_empty();
        if !found {
            eprintln!("doctor finds {faults:?}");
        }
        found.then_some(())
    })
    .await;
}

/// Calls a function of an installation with three runners, inspects the installation, breaks it and
/// repairs it.
pub(crate) async fn operate(setup: &DeploySetup) {
    let image = setup.images[0].as_str();
    let called = porch_fn(setup, &["eval", "--image", image, "--package", "-"], INPUT.as_ref()).await;
    assert!(called.status.success(), "{}", text(&called.stderr));
    assert_eq!(called.stdout, INPUT.as_ref() as &[u8]);
    let refused = porch_fn(setup, &["eval", "--image", "NO", "--package", "-"], INPUT.as_ref()).await;
    assert!(!refused.status.success());

    // Discovery may be seconds behind a rollout.
    eventually("all three runners are healthy", async || {
        let shards = porch_fn(setup, &["shards"], b"").await;
        (text(&shards.stdout).matches("   healthy   ").count() == 3).then_some(())
    })
    .await;
    let config = porch_fn(setup, &["config", image], b"").await;
    assert!(text(&config.stdout).contains("--max-parallel-pods-per-function"), "{}", text(&config.stdout));
    let wrong_namespace = porch_fn(setup, &["shards", "-n", "default"], b"").await;
    assert_eq!(
        text(&wrong_namespace.stderr),
        "porch-fn shards: there is no Service function-router in namespace default: see -n, or apply deploy/\n"
    );

    let faults = eventually("the doctor reports only that there is no Porch", async || {
        let (faults, success) = doctor(setup).await;
        (success && faults.len() == 1).then_some(faults)
    })
    .await;
    assert_eq!(texts(&faults, "warning"), ["nothing in namespace porch-system calls a function runner"]);

    break_and_repair(setup).await;
}

/// Breaks the routers' Service and the runners' rights, and repairs them by `kubectl apply`.
async fn break_and_repair(setup: &DeploySetup) {
    let selector = r#"{"spec": {"selector": {"app": "function-runner"}}}"#;
    setup.kubectl(&["-n", HOME, "patch", "service", "function-router", "-p", selector]).await;
    let role = r#"[{"op": "remove", "path": "/rules/0/verbs/0"}]"#;
    let patch = ["-n", FUNCTIONS, "patch", "role", "function-runner-shards", "--type=json", "-p", role];
    setup.kubectl(&patch).await;
    let problems = [
        "Service function-router does not lead to Deployment function-router",
        "ServiceAccount function-runner-shards may not create pods in porch-fn-system",
    ];
    wait_doctor_finds(setup, &problems).await;
    // `kubectl apply` merges selectors, so the added label must be removed explicitly.
    let selector = r#"{"spec": {"selector": {"app": null}}}"#;
    setup.kubectl(&["-n", HOME, "patch", "service", "function-router", "-p", selector]).await;
    setup.kubectl(&["apply", "-k", DEPLOY]).await;
    wait_doctor_finds(setup, &[]).await;
}
