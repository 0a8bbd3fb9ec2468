//! Function pods, with one right on Services missing.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::process::eventually;
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;

use super::{Limited, MAY_NOT_CREATE, Watched, with_a_pod};
use crate::parity::{Bench, INPUT, MANAGED_BY, MANAGER};

/// So long a runner waits for its first list of Services, before it makes one that may be there.
const LISTED_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_create() {
    let limited = Limited::without(&[("create", "services")], &[]).await;
    limited.fails(MAY_NOT_CREATE).await;
    drop(limited);
    let limited = Limited::without(&[("create", "services")], &["--pod-connect=pod-ip"]).await;
    limited.works().await;
    drop(limited);
    let limited = Limited::start(with_a_pod().await, &[("create", "services")], &[]).await;
    limited.runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_delete() {
    let bench = Bench::new().await;
    let old = json!({
        "metadata": {"name": bench.name(0), "labels": {MANAGED_BY: MANAGER}},
        "spec": {"ports": [{"port": 9446}]},
    });
    let old: Service = bench.namespace.make(old).await;
    let limited = Limited::start(bench, &[("delete", "services")], &[]).await;
    let reason = "the Service of an earlier pod holds the name of the function's, and the runner may not delete it: grant its \
                  service account the Role of the deployment manifests in the function namespace";
    limited.fails(reason).await;
    limited.bench.namespace.api::<Service>().delete(&old.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("the name is free", async || {
        (limited.runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_get() {
    let bench = Bench::new().await;
    let foreign = json!({"metadata": {"name": bench.name(0)}, "spec": {"ports": [{"port": 9446}]}});
    let foreign: Service = bench.namespace.make(foreign).await;
    let limited = Limited::start(bench, &[("get", "services")], &["--pod-ready-timeout=20s"]).await;
    // With it, the caller is told at once whose Service it is: parity::adoption.
    let answer = limited.runner.call(INPUT).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{}", answer.message);
    limited.says("Service not created after several attempts").await;
    limited.says("cannot get resource").await;
    let now = limited.bench.namespace.api::<Service>().get(&foreign.name_any()).await.unwrap();
    assert_eq!(now, foreign);
    drop(limited);

    // The name is all that it is needed for.
    Limited::without(&[("get", "services")], &[]).await.works().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_list() {
    let bench = with_a_pod().await;
    let watched = Watched::new(&bench).await;
    let start = Instant::now();
    let limited = Limited::start(bench, &[("list", "services")], &[]).await;
    limited.runner.succeeds().await;
    assert!(start.elapsed() >= LISTED_WITHIN);
    limited.works().await;
    limited.says("cannot list resource").await;
    // The Service of the pod that was there is known by having been made in vain.
    let Some(asked) = watched.services(&limited).await else { return };
    assert!(asked.iter().any(|(verb, code)| verb == "create" && *code == 409), "{asked:?}");
    assert!(asked.iter().any(|(verb, _)| verb == "get"), "{asked:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_watch() {
    let bench = with_a_pod().await;
    let watched = Watched::new(&bench).await;
    let limited = Limited::start(bench, &[("watch", "services")], &[]).await;
    limited.works().await;
    limited.says("cannot watch resource").await;
    // They are listed anew all the time.
    eventually("Services are listed again and again", async || {
        let Some(asked) = watched.services(&limited).await else { return Some(()) };
        let lists = asked.iter().filter(|(verb, _)| verb == "list").count();
        (lists > 3).then_some(())
    })
    .await;
}

/// What the three tests before this one are compared with. A list that takes the server more than [`LISTED_WITHIN`] is not
/// waited for; not so each time.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn with_all_rights_services_are_listed_once_and_never_made_in_vain() {
    let mut all_asked = Vec::new();
    for _ in 0..3 {
        let bench = with_a_pod().await;
        let watched = Watched::new(&bench).await;
        let limited = Limited::start(bench, &[], &[]).await;
        limited.works().await;
        let log = limited.runner.server.log();
        assert!(!log.contains("the watch broke") && !log.contains("forbidden"), "{log}");
        let Some(asked) = watched.services(&limited).await else { return };
        let count = |of: &str| asked.iter().filter(|(verb, _)| verb == of).count();
        // One that ends after its minute is made anew.
        assert!(count("list") == 1 && count("watch") >= 1, "{asked:?}");
        if count("get") == 0 && !asked.contains(&("create".to_owned(), 409)) {
            return;
        }
        all_asked.push(asked);
    }
    panic!("each time a Service was made in vain: {all_asked:?}");
}
