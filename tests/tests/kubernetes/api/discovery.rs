//! A router that finds runners where its account may not read EndpointSlices. How EndpointSlices are followed is tested in
//! common/discovery, and with the manifests' Services in `alone::scaling`.

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::rbac::v1::PolicyRule;
use porch_fn_tests::process::{eventually, flag};
use serde_json::json;

use crate::rig::Bench;

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn rights_to_endpoints_alone_do() {
    let Bench { sandbox, namespace, .. } = Bench::new().await;
    // It selects nothing: nobody is there.
    let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
    namespace.make::<Service>(json!({"metadata": {"name": "runners"}, "spec": spec})).await;
    let endpoints = json!({
        "metadata": {"name": "runners", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": "10.250.1.1"}], "ports": [{"port": 80}]}],
    });
    namespace.make::<Endpoints>(endpoints).await;
    let account = namespace.account("router").await;
    let endpoints = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["endpoints".to_owned()]),
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    account.allow(&namespace, &[endpoints]).await;
    let target = format!("--runners=kubernetes:///{}/runners:9445", namespace.name());
    let kubeconfig = flag("kubeconfig", account.kubeconfig(&sandbox).await);
    let router = sandbox.server("porch-fn-router", [target.into(), kubeconfig]).await;
    eventually("the router knows the address", async || {
        let page = router.json("/shards").await;
        let shards = page["shards"].as_array()?;
        (shards.len() == 1 && shards[0]["address"] == "10.250.1.1:9445").then_some(())
    })
    .await;
    let missing = format!(
        "grant this process's account get, list and watch on endpointslices.discovery.k8s.io in namespace {}",
        namespace.name()
    );
    router.logs(&missing).await;

    assert_eq!(router.log().matches(&missing).count(), 1);
    assert!(!router.log().contains("discovery fails"));
}
