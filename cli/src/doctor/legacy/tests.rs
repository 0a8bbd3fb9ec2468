//! Tests of which objects may be deleted, and when.

use porch_fn_kubernetes::client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::checks::tests::single_runner;
use super::super::installation::Installation;
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
fn only_objects_that_porch_created_are_legacy() {
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
    // Porch names a pod from warm-up by its id. For a call, the API server generates the pod's
    // name: the id and a dash, cut to 58 characters, then five random characters.
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
fn a_service_is_unused_if_all_pods_that_it_selects_are() {
    let services = [service(ID, &json!({}))];
    let of_call = named("set-namespace-v041-0-abcd-x7k2p");
    let ours = pod(|pod| pod["metadata"]["labels"][MANAGED_BY] = json!("porch-fn-runner"));
    let server = Running { name: "home/porch-server".to_owned(), uses: Err("forbidden".to_owned()) };
    let kept = format!("pod/{ID} in functions is kept: home/porch-server may use any pod: forbidden\n");
    let [pod_of_call, pod, service] =
        [format!("pod/{ID}-x7k2p"), format!("pod/{ID}"), format!("service/{ID}")]
            .map(|object| format!("{object} in functions\n"));
    for (pods, servers, expected) in [
        (&[][..], &[][..], service.clone()),
        (&[of_call.clone(), named(ID)], &[], format!("{pod_of_call}{pod}{service}")),
        (&[of_call, ours], &[], pod_of_call),
        (&[named(ID)], &[server], kept),
    ] {
        assert_eq!(leftovers(pods, &services, servers).listed("functions"), expected);
    }
}

/// Porch's function runner in `namespace`, with its pods in `functions`.
fn other(namespace: &str, name: &str, functions: &str) -> Value {
    let pod = json!({"containers": [{"name": "x", "args": [format!("--pod-namespace={functions}")]}]});
    let selector = json!({"matchLabels": {"app": name}});
    let spec = json!({"selector": selector, "template": {"spec": pod}});
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// A cluster that gives each of these answers once, and the paths of the requests.
async fn answering(answers: Vec<(u16, Value)>) -> (Cluster, JoinHandle<Vec<String>>) {
    let answers = answers.into_iter().map(|(code, body)| (format!("{code} X"), body.to_string())).collect();
    let (address, asked) = serve(answers).await;
    let client = client(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    (Cluster { client, namespace: "porch-system".to_owned(), server: String::new() }, asked)
}

/// A list of these objects, as the API server answers.
fn listed(kind: &str, items: &[Value], next: &str) -> (u16, Value) {
    (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {"continue": next}, "items": items}))
}

/// Checks the result of [`servers`]. `expected` has the names of the porch-servers that may use
/// objects, or a part of the error: the reason why nothing may be deleted.
async fn expect(facts: &Facts, answers: Vec<(u16, Value)>, expected: Result<&[&str], &str>) {
    let (cluster, _asked) = answering(answers).await;
    let found = servers(&cluster, facts).await;
    match (found, expected) {
        (Ok(servers), Ok(names)) => assert!(servers.iter().map(|server| &server.name).eq(names)),
        (Err(error), Err(part)) => assert!(error.contains(part), "{part}: {error}"),
        (found, expected) => panic!("{found:?} is not {expected:?}"),
    }
}

#[tokio::test]
async fn nothing_is_deleted_while_porchs_runner_may_run_in_the_namespace() {
    let none = || vec![listed("DeploymentList", &[], "")];
    let unknown = "Deployment function-runner may run Porch's own function runner";
    for (answers, expected) in [
        (&[Some(true), Some(true)][..], Ok(&[][..])),
        (&[], Err(unknown)),
        (&[Some(true), None], Err(unknown)),
        (&[Some(true), Some(false)], Err(unknown)),
    ] {
        expect(&single_runner(answers), none(), expected).await;
    }
    let nobody = Facts { installed: Installation::default(), ..single_runner(&[]) };
    expect(&nobody, none(), Err("namespace porch-system has no porch-fn runner")).await;
}

/// If a Deployment is scaled to 0, `status.replicas` does not count pods that still terminate.
#[tokio::test]
async fn nothing_is_deleted_until_the_last_pod_of_porchs_runner_in_any_namespace_is_gone() {
    let facts = single_runner(&[Some(true)]);
    let (ours, functions) = (other("porch-system", "function-runner", "porch-fn-system"), "porch-fn-system");
    let renamed = |namespace| other(namespace, "renamed", functions);
    let scaled = |mut deployment: Value| {
        deployment["spec"]["replicas"] = json!(0);
        deployment
    };
    let mut server = scaled(other("a", "porch-server", functions));
    server["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--function-runner=a:9445", "--pod-namespace=porch-fn-system"]);
    let pod = |phase: &str, terminates: bool| {
        let time = terminates.then_some("2026-01-01T00:00:00Z");
        json!({"metadata": {"name": "a", "deletionTimestamp": time}, "status": {"phase": phase}})
    };
    let (runs, terminates) = (pod("Running", false), pod("Running", true));
    let still = "its pods still terminate";
    for (deployments, pods, expected) in [
        (
            vec![ours.clone(), renamed("b")],
            vec![],
            Err("Deployment renamed in namespace b may be Porch's own"),
        ),
        (vec![renamed("porch-system")], vec![], Err("Deployment renamed in namespace porch-system may be")),
        (vec![scaled(renamed("b"))], vec![&terminates], Err(still)),
        (vec![scaled(renamed("porch-system"))], vec![&terminates], Err(still)),
        (vec![scaled(renamed("b"))], vec![], Ok(&[][..])),
        (vec![scaled(renamed("b"))], vec![&pod("Failed", false), &pod("Succeeded", true)], Ok(&[])),
        // The Deployment is ours, but its terminating pod may run Porch's runner.
        (vec![ours.clone()], vec![&runs, &terminates], Err(still)),
        (vec![ours], vec![&runs], Ok(&[])),
        (vec![server.clone()], vec![&terminates], Ok(&["a/porch-server"])),
        (vec![server], vec![], Ok(&[])),
    ] {
        let pods: Vec<_> = pods.into_iter().cloned().collect();
        let no_template = (404, json!({"kind": "Status", "status": "Failure", "code": 404}));
        let answers =
            vec![listed("DeploymentList", &deployments, ""), listed("PodList", &pods, ""), no_template];
        expect(&facts, answers, expected).await;
    }
    let forbidden =
        json!({"kind": "Status", "status": "Failure", "message": "deployments is forbidden", "code": 403});
    expect(&facts, vec![(403, forbidden)], Err("this needs a ClusterRole")).await;

    let pages = [("next", "other-functions"), ("", functions)]
        .map(|(next, functions)| listed("DeploymentList", &[other("c", "function-runner", functions)], next));
    let (cluster, asked) = answering(pages.to_vec()).await;
    let error = servers(&cluster, &facts).await.unwrap_err();
    assert!(error.contains("kubectl -n c scale deployment function-runner --replicas=0"), "{error}");
    let path = "/apis/apps/v1/deployments?&limit=500";
    assert_eq!(asked.await.unwrap(), [path.to_owned(), format!("{path}&continue=next")]);
}

#[tokio::test]
async fn a_service_with_a_new_pod_is_not_deleted() {
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
        format!("/api/v1/namespaces/functions/pods?&labelselector=fn.kpt.dev%2fimage%3d{ID}&limit=500"),
        format!("/api/v1/namespaces/functions/services/{ID}?"),
    ];
    assert_eq!(asked.await.unwrap(), expected);
}

#[tokio::test]
async fn the_number_of_objects_to_read_is_limited() {
    let (cluster, asked) = answering(vec![listed("PodList", &[], "next"); 10]).await;
    let error = cluster.all::<Pod>("pods", ListParams::default()).await.unwrap_err();
    let expected = "the pods of namespace porch-system cannot be read: there are more than 5000";
    assert_eq!((error.to_string().as_str(), asked.await.unwrap().len()), (expected, 10));
}
