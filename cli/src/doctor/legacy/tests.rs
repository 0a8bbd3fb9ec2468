//! What may be deleted, and when.

use porch_fn_kubernetes::client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::checks::tests::alone;
use super::super::installation::{Installation, PorchRunner};
use super::*;
use crate::testing::serve;

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "set-namespace-v041-0-abcd", "labels": {IMAGE: "set-namespace-v041-0-abcd"},
            "annotations": {TEMPLATE_VERSION: "inline-v1"}, "ownerReferences": [],
        },
        "spec": {"containers": [{"name": CONTAINER}]},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

const ID: &str = "set-namespace-v041-0-abcd";

fn named(name: &str) -> Pod {
    pod(|pod| pod["metadata"]["name"] = json!(name))
}

fn service(name: &str, labels: &Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels}, "spec": {"selector": {IMAGE: ID}},
    }))
    .unwrap()
}

#[test]
fn only_pods_and_services_that_porch_made_are_its_own() {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "b"}]);
    for (pointer, value) in [
        ("/metadata/labels", json!({IMAGE: ID, MANAGED_BY: "porch-fn-runner"})),
        ("/metadata/labels", json!({IMAGE: "another"})),
        ("/metadata/annotations", json!({})),
        ("/metadata/ownerReferences", owner),
        ("/spec/containers/0/name", json!("other")),
    ] {
        assert!(!is_legacy(&pod(|pod| *pod.pointer_mut(pointer).unwrap() = value)), "{pointer}");
    }
    // Only warm-up names a pod by its id; for a call the API server makes a name of it, and leaves 58 characters of
    // what it is made from.
    let id = "a".repeat(60);
    for (name, id, expected) in [
        (ID, ID, true),
        ("set-namespace-v041-0-abcd-x7k2p", ID, true),
        ("set-namespace-v041-0-abcdx7k2p", ID, false),
        ("set-namespace-v041-0-abcd-x7k2pp", ID, false),
        ("another-x7k2p", ID, false),
        (&format!("{}x7k2p", "a".repeat(58)), &id, true),
        (&format!("{}x7k2p", "a".repeat(57)), &id, false),
        ("-x7k2p", "", false),
    ] {
        let pod = pod(|pod| {
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["labels"][IMAGE] = json!(id);
        });
        assert_eq!(is_legacy(&pod), expected, "{name}");
    }
    assert!(is_legacy_service(&service(ID, &json!({}))));
    assert!(!is_legacy_service(&service("other", &json!({}))));
    assert!(!is_legacy_service(&service(ID, &json!({MANAGED_BY: "x"}))));
    assert!(!is_legacy_service(&Service::default()));
}

#[test]
fn a_service_is_dead_when_no_pod_that_it_selects_may_be_used() {
    let services = [service(ID, &json!({}))];
    let made_for_a_call = || named("set-namespace-v041-0-abcd-x7k2p");
    let names = |pods: &[Pod]| leftovers(pods, &services, &[]).listed("functions");
    let dead_service = format!("service/{ID} in functions\n");
    assert_eq!(names(&[]), dead_service, "left without any pod");
    assert_eq!(
        names(&[made_for_a_call(), named(ID)]),
        format!("pod/{ID}-x7k2p in functions\npod/{ID} in functions\n{dead_service}")
    );
    let ours = pod(|pod| pod["metadata"]["labels"][MANAGED_BY] = json!("porch-fn-runner"));
    assert_eq!(names(&[made_for_a_call(), ours]), format!("pod/{ID}-x7k2p in functions\n"));
}

#[test]
fn what_a_running_porch_server_may_use_is_kept_with_its_service() {
    let server = Running { name: "home/porch-server".to_owned(), uses: Err("forbidden".to_owned()) };
    let left = leftovers(&[named(ID)], &[service(ID, &json!({}))], &[server]);
    assert!(left.is_empty());
    let expected =
        format!("1 pods in functions are kept ({ID}); home/porch-server: it may use any: forbidden\n");
    assert_eq!(left.listed("functions"), expected);
}

#[test]
fn nothing_is_deleted_that_somebody_may_need() {
    let refuses = |facts: &Facts, part: &str| {
        let error = needed(facts).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    };
    for ours in [&[Some(true)][..], &[Some(true), Some(true)]] {
        assert_eq!(needed(&alone(ours)), Ok(()));
    }
    let unknown = "what runs as function-runner may be Porch's own function runner";
    refuses(&alone(&[]), unknown);
    refuses(&alone(&[None]), unknown);
    refuses(&alone(&[Some(true), None]), unknown);
    refuses(&alone(&[Some(false)]), "Porch's own function runner runs, and needs them");
    refuses(&alone(&[Some(true), Some(false)]), "Porch's own function runner runs, and needs them");
    let nobody = Facts { installed: Installation::default(), ..alone(&[]) };
    refuses(&nobody, "no runner of ours is known in namespace porch-system");
    let mut beside = alone(&[Some(true)]);
    beside.installed.originals =
        vec![original("older", 0, true), original("next", 1, false), original("old", 1, true)];
    refuses(&beside, "kubectl -n porch-system scale deployment old --replicas=0");
    beside.installed.originals.pop();
    assert_eq!(needed(&beside), Ok(()));
}

fn original(name: &str, pods: i32, starts_pods: bool) -> PorchRunner {
    PorchRunner { workload: Workload { name: name.to_owned(), pods, ..Workload::default() }, starts_pods }
}

/// Porch's function runner in `namespace`, with its pods in `functions`.
fn other(namespace: &str, name: &str, functions: &str) -> Value {
    let pod = json!({"containers": [{"name": "x", "args": [format!("--pod-namespace={functions}")]}]});
    let selector = json!({"matchLabels": {"app": name}});
    let spec = json!({"selector": selector, "template": {"spec": pod}});
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// A cluster that gives these answers, each once, and what it was asked for.
async fn answering(answers: Vec<(u16, Value)>) -> (Cluster, JoinHandle<Vec<String>>) {
    let answers = answers.into_iter().map(|(code, body)| (format!("{code} X"), body.to_string())).collect();
    let (address, asked) = serve(answers).await;
    let client = client(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    (Cluster { client, namespace: "porch-system".to_owned() }, asked)
}

/// A list of these objects, as the API server answers.
fn listed(kind: &str, items: &[Value], next: &str) -> (u16, Value) {
    (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {"continue": next}, "items": items}))
}

/// The answer to whether anything may be deleted, of a cluster with these answers.
async fn asked(answers: Vec<(u16, Value)>, facts: &Facts) -> Result<Vec<String>, String> {
    let (cluster, _asked) = answering(answers).await;
    let servers = servers(&cluster, facts).await?;
    Ok(servers.into_iter().map(|server| server.name).collect())
}

#[tokio::test]
async fn all_namespaces_are_looked_through_before_anything_is_deleted() {
    let page = |next: &str, items: &[Value]| listed("DeploymentList", items, next);
    let facts = alone(&[Some(true)]);
    let of_others = [other("a", "function-runner", "other-functions")];
    let needing = [other("b", "function-runner", "porch-fn-system")];
    let error = asked(vec![page("next", &of_others), page("", &needing)], &facts).await.unwrap_err();
    assert!(error.contains("kubectl -n b scale deployment function-runner --replicas=0"), "{error}");
    for namespace in ["porch-system", "b"] {
        let others = [
            other("porch-system", "function-runner", "porch-fn-system"),
            other(namespace, "renamed", "porch-fn-system"),
        ];
        let answers = vec![page("", &others), listed("PodList", &[], "")];
        let error = asked(answers, &facts).await.unwrap_err();
        let start = format!("Deployment renamed in namespace {namespace} may be Porch's own");
        assert!(error.starts_with(&start), "{error}");
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
        "message": "deployments is forbidden", "code": 403});
    let error = asked(vec![(403, status)], &facts).await.unwrap_err();
    assert!(error.contains("deployments is forbidden") && error.contains("a ClusterRole"), "{error}");

    let (cluster, asked) = answering(vec![page("next", &of_others), page("", &[])]).await;
    assert_eq!(servers(&cluster, &facts).await, Ok(Vec::new()));
    let path = "/apis/apps/v1/deployments?&limit=500";
    assert_eq!(asked.await.unwrap(), [path.to_owned(), format!("{path}&continue=next")]);
}

/// Of a Deployment that is scaled to 0, `status.replicas` leaves out the pods that still terminate.
#[tokio::test]
async fn a_workload_that_is_scaled_to_0_needs_its_pods_until_it_has_terminated() {
    let scaled = |mut deployment: Value| {
        deployment["spec"]["replicas"] = json!(0);
        listed("DeploymentList", &[deployment], "")
    };
    let pod = |phase: &str, terminates: bool| {
        let time = terminates.then_some("2026-01-01T00:00:00Z");
        json!({"metadata": {"name": "a", "deletionTimestamp": time}, "status": {"phase": phase}})
    };
    let mut here = alone(&[Some(true)]);
    here.installed.originals = vec![original("old", 0, true)];
    for (namespace, name, pods, is_needed) in [
        ("porch-system", "old", vec![pod("Running", true)], true),
        ("b", "renamed", vec![pod("Running", true)], true),
        ("porch-system", "old", vec![], false),
        ("porch-system", "old", vec![pod("Failed", false), pod("Succeeded", true)], false),
        // It is ours, and the pod that terminates may have been Porch's.
        ("porch-system", "function-runner", vec![pod("Running", false), pod("Running", true)], true),
        ("porch-system", "function-runner", vec![pod("Running", false)], false),
    ] {
        let deployment = scaled(other(namespace, name, "porch-fn-system"));
        match asked(vec![deployment, listed("PodList", &pods, "")], &here).await {
            Err(error) => assert!(is_needed && error.contains("still terminate"), "{name}: {error}"),
            Ok(servers) => assert!(!is_needed && servers.is_empty(), "{namespace}/{name}: {pods:?}"),
        }
    }
    let mut server = other("a", "porch-server", "porch-fn-system");
    server["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--function-runner=a:9445", "--pod-namespace=porch-fn-system"]);
    let no_template = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
    for (pods, names) in [(vec![pod("Running", true)], vec!["a/porch-server"]), (vec![], vec![])] {
        let answers = vec![scaled(server.clone()), listed("PodList", &pods, ""), (404, no_template.clone())];
        assert_eq!(asked(answers, &here).await.unwrap(), names);
    }
}

#[tokio::test]
async fn a_service_that_has_a_pod_meanwhile_is_not_deleted() {
    let pods = |terminating: bool| {
        let mut pod = serde_json::to_value(named("set-namespace-v041-0-abcd-x7k2p")).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!(terminating.then_some("2026-01-01T00:00:00Z"));
        listed("PodList", &[pod], "")
    };
    let service = service(ID, &json!({}));
    let (cluster, _asked) = answering(vec![pods(false)]).await;
    let error = delete_service(&cluster, "functions", &service).await.unwrap_err();
    assert_eq!(error, format!("not deleted, since pod {ID}-x7k2p may be in use"));

    let deleted = (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
    let (cluster, asked) = answering(vec![pods(true), deleted]).await;
    assert_eq!(delete_service(&cluster, "functions", &service).await, Ok(()));
    let expected = [
        format!("/api/v1/namespaces/functions/pods?&labelselector=fn.kpt.dev%2fimage%3d{ID}"),
        format!("/api/v1/namespaces/functions/services/{ID}?"),
    ];
    assert_eq!(asked.await.unwrap(), expected);
}
