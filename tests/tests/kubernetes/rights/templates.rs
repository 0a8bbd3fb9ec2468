//! Templates and credentials of the user's, with the right to read them missing.

use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::DeleteParams;
use porch_fn_tests::process::eventually;
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};

use super::{Limited, TEMPLATE_FLAG, with_a_pod};
use crate::parity::Bench;
use crate::templates::{apply_base_templates, version};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_podtemplates_get() {
    let bench = Bench::new().await;
    apply_base_templates(&bench).await;
    let limited = Limited::start(bench, &[("get", "podtemplates")], &[]).await;
    limited.runner.succeeds().await;
    let pod = limited.bench.pod().await;
    assert!(version(&pod).starts_with("inline-"), "{}", version(&pod));
    limited.says("makes pods from the template that is built in").await;
    limited.says("grant the runner's service account get on podtemplates").await;

    // With the right, and without a restart, it is used.
    limited.allow(&Roles::of(&[BASE]).rules(FUNCTIONS)).await;
    limited.says("source=PodTemplate").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_servicetemplates_get() {
    let bench = Bench::new().await;
    apply_base_templates(&bench).await;
    let limited = Limited::start(bench, &[("get", "servicetemplates")], &[]).await;
    assert_eq!(affinity(&limited).await, "None");
    limited.says("grant the runner's service account get on servicetemplates").await;

    limited.allow(&Roles::of(&[BASE]).rules(FUNCTIONS)).await;
    eventually("the ServiceTemplate is read", async || {
        let log = limited.runner.server.log();
        (log.matches("using the template of function pods").count() == 2).then_some(())
    })
    .await;
    limited.collects().await;
    assert_eq!(affinity(&limited).await, "ClientIP");

    // Whoever had the right has lost it, not the template.
    limited.bench.namespace.api::<RoleBinding>().delete("more", &DeleteParams::default()).await.unwrap();
    limited.says("kept=true").await;
    limited.collects().await;
    assert_eq!(affinity(&limited).await, "ClientIP");
}

/// The session affinity of the Service that comes with a call's pod.
async fn affinity(limited: &Limited) -> String {
    limited.runner.succeeds().await;
    let pod = limited.bench.pod().await;
    assert!(version(&pod).starts_with("podtemplate-"), "{}", version(&pod));
    limited.bench.service_of(&pod).await.spec.unwrap().session_affinity.unwrap()
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_configmaps_get() {
    let more = [TEMPLATE_FLAG];
    let limited = Limited::without(&[("get", "configmaps")], &more).await;
    let reason = "the runner may not read ConfigMap kpt-function-eval-pod-template of --function-pod-template: its Role needs the \
                  verb get on configmaps in its own namespace";
    limited.fails(reason).await;
    let limited = Limited::start(with_a_pod().await, &[("get", "configmaps")], &more).await;
    limited.runner.succeeds().await;
}
