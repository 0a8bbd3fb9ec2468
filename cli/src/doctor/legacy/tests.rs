//! What may be deleted, and when.

use porch_fn_service::kubernetes::client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::facts::{Asked, RunnerAnswer, Silence, Template};
use super::super::installation::{Installation, installation};
use super::*;

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "set-namespace-v041-0-abcd", "labels": {IMAGE: "set-namespace-v041-0-abcd"},
            "annotations": {TEMPLATE_VERSION: "inline-v1"},
        },
        "spec": {"containers": [{"name": CONTAINER}]},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn only_what_the_original_made_is_its_own() {
    assert!(is_legacy(&pod(|_| ())));
    let changes: [fn(&mut Value); 6] = [
        |pod| pod["metadata"]["labels"][MANAGED_BY] = json!("porch-fn-runner"),
        |pod| pod["metadata"]["labels"][MANAGED_BY] = json!("somebody"),
        |pod| pod["metadata"]["labels"][IMAGE] = json!("another"),
        |pod| pod["metadata"]["annotations"] = json!({}),
        |pod| pod["spec"]["containers"][0]["name"] = json!("other"),
        |pod| {
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "b"}]);
        },
    ];
    for change in changes {
        assert!(!is_legacy(&pod(change)));
    }
}

/// Only warm-up names a pod by its id; for a call the API server makes a name of it.
#[test]
fn pods_made_for_a_call_are_found_by_their_label() {
    let named = |name: &str| pod(|pod| pod["metadata"]["name"] = json!(name));
    assert!(is_legacy(&named("set-namespace-v041-0-abcd-x7k2p")));
    assert!(!is_legacy(&named("set-namespace-v041-0-abcdx7k2p")));
    assert!(!is_legacy(&named("another-x7k2p")));
}

#[test]
fn a_service_is_its_own_by_its_selector() {
    let service = |labels: Value, selector: Value| -> Service {
        serde_json::from_value(json!({"metadata": {"labels": labels}, "spec": {"selector": selector}}))
            .unwrap()
    };
    assert!(is_its_service(&service(json!({}), json!({IMAGE: "a"})), "a"));
    assert!(!is_its_service(&service(json!({}), json!({IMAGE: "b"})), "a"));
    assert!(!is_its_service(&service(json!({MANAGED_BY: "x"}), json!({IMAGE: "a"})), "a"));
}

/// What is known of a namespace in which a runner stands under the original's name.
fn facts(answers: &[Result<bool, Silence>]) -> Facts {
    let command = json!(["/server", "--pod-namespace=functions"]);
    let deployment = json!({
        "metadata": {"name": "function-runner"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "x", "command": command}]}}},
    });
    let deployments: [Deployment; 1] = [serde_json::from_value(deployment).unwrap()];
    let asked = |answer: &Result<bool, Silence>| Asked {
        pod: String::new(),
        ips: Vec::new(),
        ready: true,
        answer: answer.clone().map(|ours| RunnerAnswer { ours, metrics: String::new() }),
    };
    Facts {
        namespace: "home".to_owned(),
        installed: installation(&deployments),
        services: Vec::new(),
        routers: Vec::new(),
        runners: answers.iter().map(asked).collect(),
        functions: "functions".to_owned(),
        function_pods: Ok(Vec::new()),
        more_function_pods: false,
        rights: Ok(Vec::new()),
        template: Template::BuiltIn,
    }
}

#[test]
fn nothing_is_deleted_that_somebody_may_need() {
    assert_eq!(needed(&facts(&[Ok(true)])), None);
    assert_eq!(needed(&facts(&[Ok(true), Ok(true)])), None);
    let unknown = Some(Needed::Unknown("function-runner".to_owned()));
    assert_eq!(needed(&facts(&[])), unknown);
    for silence in [Silence::Failed("forbidden".to_owned()), Silence::NotAsked] {
        assert_eq!(needed(&facts(&[Err(silence.clone())])), unknown);
        assert_eq!(needed(&facts(&[Ok(true), Err(silence)])), unknown);
    }
    assert_eq!(needed(&facts(&[Ok(false)])), Some(Needed::Original));
    assert_eq!(needed(&facts(&[Ok(true), Ok(false)])), Some(Needed::Original));
    let nobody = Facts { installed: Installation::default(), ..facts(&[]) };
    assert_eq!(needed(&nobody), Some(Needed::NoRunner("home".to_owned())));
    let mut beside = facts(&[Ok(true)]);
    beside.installed.originals = vec![("older".to_owned(), 0), ("old".to_owned(), 1)];
    let old = Needed::Beside { namespace: "home".to_owned(), deployment: "old".to_owned() };
    assert_eq!(needed(&beside), Some(old));
    beside.installed.originals.pop();
    assert_eq!(needed(&beside), None);
}

/// Porch's function runner in `namespace`, with its pods in `functions`.
fn other(namespace: &str, name: &str, functions: &str) -> Value {
    let pod = json!({"containers": [{"name": "x", "args": [format!("--pod-namespace={functions}")]}]});
    let spec = json!({"selector": {}, "template": {"spec": pod}});
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

#[test]
fn nor_what_somebody_elsewhere_may_need() {
    let facts = facts(&[Ok(true)]);
    let others = [
        other("home", "function-runner", "functions"),
        other("a", "function-runner", "other-functions"),
        other("b", "renamed", "functions"),
    ];
    let others: Vec<Deployment> = serde_json::from_value(json!(others)).unwrap();
    assert_eq!(needed_by(&others[..2], &facts), None);
    let needed = Needed::Elsewhere { namespace: "b".to_owned(), deployment: "renamed".to_owned() };
    assert_eq!(needed_by(&others, &facts), Some(needed));
}

/// A cluster that gives these answers, each once, and what it was asked for.
async fn answering(answers: Vec<(u16, Value)>) -> (Cluster, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = client(kube::Config::new(url.parse().unwrap())).unwrap();
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        for (code, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            asked.push(String::from_utf8(request).unwrap().split(' ').nth(1).unwrap().to_owned());
            let body = body.to_string();
            let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}", body.len());
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        }
        asked
    });
    (Cluster { client, namespace: "home".to_owned() }, asked)
}

#[tokio::test]
async fn all_namespaces_are_looked_through_before_anything_is_deleted() {
    let page = |next: &str, items: &[Value]| {
        let list = json!({"kind": "DeploymentList", "apiVersion": "apps/v1", "items": items});
        let mut list = list.as_object().unwrap().clone();
        list.insert("metadata".to_owned(), json!({"continue": next}));
        (200, Value::Object(list))
    };
    let facts = facts(&[Ok(true)]);
    let of_others = [other("a", "function-runner", "other-functions")];
    let needing = [other("b", "function-runner", "functions")];
    let (cluster, _asked) = answering(vec![page("next", &of_others), page("", &needing)]).await;
    let error = unneeded(&cluster, &facts).await.unwrap_err();
    assert!(error.contains("kubectl -n b scale deployment function-runner --replicas=0"), "{error}");

    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
        "message": "deployments is forbidden", "code": 403});
    let (cluster, _asked) = answering(vec![(403, status)]).await;
    let error = unneeded(&cluster, &facts).await.unwrap_err();
    assert!(error.contains("deployments is forbidden") && error.contains("a ClusterRole"), "{error}");

    let (cluster, asked) = answering(vec![page("next", &of_others), page("", &[])]).await;
    assert_eq!(unneeded(&cluster, &facts).await, Ok(()));
    let expected =
        ["/apis/apps/v1/deployments?&limit=500", "/apis/apps/v1/deployments?&limit=500&continue=next"];
    assert_eq!(asked.await.unwrap(), expected);
}
