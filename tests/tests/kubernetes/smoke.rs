//! That the cluster and its harness do what the other tests take for granted.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, DeleteParams, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use porch_fn_tests::cluster::{Change, Cluster, ENTRYPOINT, Namespace};
use porch_fn_tests::process::{Sandbox, figure};
use serde_json::json;
use tokio::time::Instant;

fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn until_ready(namespace: &Namespace, name: &str) -> Pod {
    let look = |pods: &[Pod]| pods.iter().find(|pod| pod.name_any() == name && ready(pod)).cloned();
    namespace.until(&format!("pod {name} is ready"), look).await
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_of_the_tests_images_is_ready_and_its_processes_can_be_killed() {
    let cluster = Cluster::connect().await;
    let nodes: Api<Node> = Api::all(cluster.client());
    assert!(!nodes.list(&ListParams::default()).await.unwrap().items.is_empty());
    let namespace = cluster.namespace().await;
    let record = namespace.record::<Pod>().await;

    let image = cluster.function_named("another/name:v2").await;
    let mount = json!([{"name": "tools", "mountPath": "/tools"}]);
    let start = Instant::now();
    namespace
        .make::<Pod>(json!({
            "metadata": {"name": "pod"},
            "spec": {
                "volumes": [{"name": "tools", "emptyDir": {}}],
                "initContainers": [{
                    "name": "copy", "image": cluster.wrapper_image(), "volumeMounts": mount,
                    "command": ["cp", "-a", "/wrapper-server/.", "/tools"],
                }],
                "containers": [{
                    "name": "function", "image": image, "volumeMounts": mount,
                    "command": ["/tools/wrapper-server", "--port", "9446", "--", ENTRYPOINT],
                    "readinessProbe": {"grpc": {"port": 9446}},
                }],
            },
        }))
        .await;
    let pod = until_ready(&namespace, "pod").await;
    figure(&format!("pod with an init container ready after {:?}", start.elapsed()));

    if let Some(own) = cluster.own() {
        assert_eq!(own.kill_processes(&pod), 1, "the wrapper-server, and not the pause");
        let restarted = |pods: &[Pod]| {
            let statuses = pods.first()?.status.as_ref()?.container_statuses.as_ref()?;
            (statuses.first()?.restart_count == 1).then_some(())
        };
        namespace.until("the container is started again", restarted).await;
    }
    assert_eq!(record.most_at_once(|_| true), 1);
    assert!(record.changes().iter().any(|(_, change)| matches!(change, Change::Applied(pod) if ready(pod))));
    namespace.finish().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_account_may_do_what_it_is_allowed_and_is_in_the_audit_log() {
    let cluster = Cluster::connect().await;
    let (home, other) = tokio::join!(cluster.namespace(), cluster.namespace());
    let sandbox = Sandbox::new();
    let account = home.account("reader").await;
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["configmaps".into()]),
        verbs: vec!["get".into(), "list".into()],
        ..Default::default()
    };
    account.allow(&other, &[rule]).await;
    let kubeconfig = Kubeconfig::read_from(account.kubeconfig(&sandbox).await).unwrap();
    let client = Client::try_from(
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap(),
    )
    .unwrap();

    let audit = cluster.own().map(|own| own.audit(cluster.client()));
    let mark = match &audit {
        Some(audit) => Some(audit.mark().await),
        None => None,
    };
    let allowed: Api<ConfigMap> = Api::namespaced(client.clone(), other.name());
    allowed.list(&ListParams::default()).await.unwrap();
    let refused = allowed.delete("kube-root-ca.crt", &DeleteParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    let refused = Api::<ConfigMap>::namespaced(client, home.name()).list(&ListParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));

    if let (Some(audit), Some(mark)) = (&audit, &mark) {
        let requests = audit.since(mark).await.into_iter().filter(|request| request.user == account.user());
        let requests: Vec<_> = requests
            .map(|request| (request.verb, request.resource, request.namespace, request.code))
            .collect();
        let line = |verb: &str, namespace: &Namespace, code| {
            (verb.to_owned(), "configmaps".to_owned(), namespace.name().to_owned(), code)
        };
        assert_eq!(
            requests,
            [line("list", &other, 200), line("delete", &other, 403), line("list", &home, 403)]
        );
        assert!(audit.since(&audit.mark().await).await.iter().all(|request| request.user != account.user()));
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_namespace_is_deleted_when_it_is_dropped() {
    let cluster = Cluster::connect().await;
    let namespace = cluster.namespace().await;
    let name = namespace.name().to_owned();
    drop(namespace);
    let all: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cluster.client());
    let there = all.get_opt(&name).await.unwrap();
    assert!(there.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()));
}

/// An aggregated API server, such as Porch's, reads from this object whom it may trust, and does not start without it.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_api_server_proves_itself_to_aggregated_ones() {
    let cluster = Cluster::connect().await;
    if cluster.own().is_none() {
        return;
    }
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "kube-system");
    let map = maps.get("extension-apiserver-authentication").await.unwrap();
    let data = map.data.unwrap();
    assert!(data["requestheader-client-ca-file"].contains("BEGIN CERTIFICATE"), "{data:?}");
    assert_eq!(data["requestheader-allowed-names"], r#"["front-proxy"]"#);
    assert_eq!(data["requestheader-username-headers"], r#"["X-Remote-User"]"#);
}
