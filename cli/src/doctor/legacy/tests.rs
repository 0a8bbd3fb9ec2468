//! What may be deleted, and when.

use porch_fn_service::kubernetes::client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::facts::{Asked, RunnerAnswer, Silence, Template};
use super::super::installation::{Installation, PorchRunner, installation};
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
fn only_what_porch_made_is_its_own() {
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
    assert!(is_legacy(&named("set-namespace-v041-0-abcd-x7k2p")));
    for other in ["set-namespace-v041-0-abcdx7k2p", "set-namespace-v041-0-abcd-x7k2pp", "another-x7k2p"] {
        assert!(!is_legacy(&named(other)), "{other}");
    }
    // The API server leaves 58 characters of what a name is made from.
    let id = "a".repeat(60);
    assert!(is_named_after(&format!("{}x7k2p", "a".repeat(58)), &id));
    assert!(!is_named_after(&format!("{}x7k2p", "a".repeat(57)), &id));
    assert!(!is_named_after("-x7k2p", ""));
}

#[test]
fn a_service_is_its_own_by_name_and_selector() {
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
    let server = Running {
        name: "home/porch-server".to_owned(),
        since: Err("forbidden".to_owned()),
        template: Err("forbidden".to_owned()),
    };
    let left = leftovers(&[named(ID)], &[service(ID, &json!({}))], &[server]);
    assert!(left.is_empty());
    let expected =
        format!("1 pods in functions are kept ({ID}); home/porch-server: it may use any: forbidden\n");
    assert_eq!(left.listed("functions"), expected);
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
        servers: Vec::new(),
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
    let original = |deployment: &str, pods, starts_pods| PorchRunner {
        deployment: deployment.to_owned(),
        pods,
        starts_pods,
    };
    beside.installed.originals =
        vec![original("older", 0, true), original("next", 1, false), original("old", 1, true)];
    let old = Needed::Beside { namespace: "home".to_owned(), deployment: "old".to_owned() };
    assert_eq!(needed(&beside), Some(old));
    beside.installed.originals.pop();
    assert_eq!(needed(&beside), None);
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
            let request = String::from_utf8(request).unwrap().to_ascii_lowercase();
            let length = request.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            let length = length.map_or(0, |length| length.parse().unwrap());
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            asked.push(request.split(' ').nth(1).unwrap().to_owned());
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
    assert_eq!(unneeded(&cluster, &facts).await, Ok(Vec::new()));
    let expected =
        ["/apis/apps/v1/deployments?&limit=500", "/apis/apps/v1/deployments?&limit=500&continue=next"];
    assert_eq!(asked.await.unwrap(), expected);
}

/// A list of these objects, as the API server answers.
fn listed(kind: &str, items: &[Value]) -> (u16, Value) {
    (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}))
}

#[tokio::test]
async fn nor_what_somebody_elsewhere_may_need() {
    let renamed = |namespace: &str| {
        let others = [
            other("home", "function-runner", "functions"),
            other("a", "function-runner", "other-functions"),
            other(namespace, "renamed", "functions"),
        ];
        vec![listed("DeploymentList", &others), listed("PodList", &[])]
    };
    for namespace in ["home", "b"] {
        let (cluster, _asked) = answering(renamed(namespace)).await;
        let error = unneeded(&cluster, &facts(&[Ok(true)])).await.unwrap_err();
        let start = format!("Deployment renamed in namespace {namespace} may be Porch's own");
        assert!(error.starts_with(&start), "{error}");
    }
}

#[tokio::test]
async fn porch_servers_are_asked_what_they_may_use() {
    let server = |namespace: &str, functions: &str| {
        let mut server = other(namespace, "porch-server", functions);
        let args = json!(["--function-runner=a:9445", format!("--pod-namespace={functions}")]);
        server["spec"]["template"]["spec"]["containers"][0]["args"] = args;
        server
    };
    let servers = [server("home", "functions"), server("a", "functions"), server("b", "others")];
    let (cluster, _asked) = answering(vec![listed("DeploymentList", &servers)]).await;
    let found = everywhere(&cluster, &facts(&[Ok(true)])).await.unwrap();
    let names: Vec<_> = found.iter().map(|server| server.namespace.as_str()).collect();
    assert_eq!(names, ["home", "a"]);
}

/// Of a Deployment that is scaled to 0, `status.replicas` leaves out the pods that still terminate.
#[tokio::test]
async fn what_is_scaled_to_0_needs_its_pods_until_it_has_terminated() {
    let scaled = |mut deployment: Value| {
        deployment["spec"]["replicas"] = json!(0);
        deployment["status"] = json!({"replicas": 0});
        deployment
    };
    let pod = |phase: &str, terminates: bool| {
        let time = terminates.then_some("2026-01-01T00:00:00Z");
        json!({"metadata": {"name": "a", "deletionTimestamp": time}, "status": {"phase": phase}})
    };
    let mut here = facts(&[Ok(true)]);
    let old = PorchRunner { deployment: "old".to_owned(), pods: 0, starts_pods: true };
    here.installed.originals = vec![old];
    let deployments = |deployment: Value| listed("DeploymentList", &[scaled(deployment)]);
    for (namespace, name, pods, is_needed) in [
        ("home", "old", vec![pod("Running", true)], true),
        ("b", "renamed", vec![pod("Running", true)], true),
        ("home", "old", vec![], false),
        ("home", "old", vec![pod("Failed", false), pod("Succeeded", true)], false),
        // It is ours, and the pod that terminates may have been Porch's.
        ("home", "function-runner", vec![pod("Running", false), pod("Running", true)], true),
        ("home", "function-runner", vec![pod("Running", false)], false),
    ] {
        let deployment = deployments(other(namespace, name, "functions"));
        let (cluster, _asked) = answering(vec![deployment, listed("PodList", &pods)]).await;
        match unneeded(&cluster, &here).await {
            Err(error) => assert!(is_needed && error.contains("still terminate"), "{name}: {error}"),
            Ok(servers) => assert!(!is_needed && servers.is_empty(), "{namespace}/{name}: {pods:?}"),
        }
    }

    let mut server = other("home", "porch-server", "functions");
    server["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--function-runner=a:9445", "--pod-namespace=functions"]);
    let no_template = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
    for (pods, names) in [(vec![pod("Running", true)], vec!["home/porch-server"]), (vec![], vec![])] {
        let answers = vec![deployments(server.clone()), listed("PodList", &pods), (404, no_template.clone())];
        let (cluster, _asked) = answering(answers).await;
        let servers = unneeded(&cluster, &here).await.unwrap();
        assert_eq!(servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), names);
    }
}

#[tokio::test]
async fn a_service_that_has_a_pod_meanwhile_is_not_deleted() {
    let pods = |terminating: bool| {
        let mut pod = serde_json::to_value(named("set-namespace-v041-0-abcd-x7k2p")).unwrap();
        if terminating {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}))
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
