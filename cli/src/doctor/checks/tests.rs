//! A healthy installation, and the finding of each fault in it.

mod callers;
mod golden;
mod live;
mod originals;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use porch_fn_status_page::Status;
use serde_json::{Value, json};

use super::super::facts::{Answer, Asked, IsOurs, Silence, TemplateSource};
use super::super::installation::installation;
use super::*;

/// The manifests of deploy/ as far as the doctor looks at them, with Porch beside them.
fn objects() -> Value {
    let deployment = |name: &str, container: Value, replicas: i32| {
        let labels = json!({"app.kubernetes.io/name": name});
        let pod = json!({"serviceAccountName": name, "terminationGracePeriodSeconds": 330, "containers": [container]});
        json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
            "status": {"readyReplicas": replicas},
        })
    };
    let limits = json!({"limits": {"memory": "1200Mi"}});
    let router = json!({
        "name": "router", "image": "x/function-runner:v1", "command": ["/porch-fn-router"], "resources": limits,
        "args": ["--runners=dns:///function-runner-shards.porch-system:9445", "--router-count=2"],
    });
    let runner = json!({
        "name": "runner", "image": "x/function-runner:v1", "command": ["/porch-fn-runner"], "resources": limits,
        "args": ["--peers=dns:///function-runner-shards.porch-system:9445"],
        "env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x/wrapper-server:v1"}],
    });
    let porch = json!({"name": "porch", "args": ["--function-runner=function-router:9445"]});
    let service = |name: &str, selected: &str, spec: Value| {
        let mut service = json!({"metadata": {"name": name}, "spec": spec});
        service["spec"]["selector"] = json!({"app.kubernetes.io/name": selected});
        service["spec"]["ports"] = json!([{"port": 9445}]);
        service
    };
    json!({
        "deployments": [
            deployment("function-router", router, 2),
            deployment("function-runner-shards", runner, 2),
            deployment("porch-server", porch, 1),
        ],
        "services": [
            service("function-router", "function-router", json!({})),
            service("function-runner-shards", "function-runner-shards", json!({"clusterIP": "None"})),
        ],
    })
}

fn router(pod: &str, runners: &[&str]) -> Asked<Status> {
    let shard = |address: &&str| {
        json!({
            "address": address, "state": "healthy", "in_flight": 0, "load": 0, "calls": 0, "failures": 0, "owned": 0,
            "share": 0.5, "pods": 0, "told": "yes", "version": "1.0.0", "exec_hash": "1",
        })
    };
    let shards: Vec<_> = runners.iter().map(shard).collect();
    let ring = json!({"scheme": 1, "virtual_nodes": 1, "slices": []});
    let mut status = json!({"ring": ring, "shards": shards, "images": []});
    let more = json!({"version": "1.0.0", "at_ms": 0, "truncated": false, "failures": [], "notes": []});
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status["totals"] = json!({"images": 0, "ready": 0, "starting": 0, "terminating": 0, "waiting": 0});
    let answer = Answer {
        page: serde_json::from_value(status).unwrap(),
        metrics: "porch_fn_router_ring_hash 7\n".to_owned(),
    };
    Asked { pod: pod.to_owned(), ips: Vec::new(), ready: true, answer: Ok(answer) }
}

fn runner(pod: &str, ip: &str) -> Asked<IsOurs> {
    let metrics = "porch_fn_runner_ring_hash 7\n\
                   porch_fn_runner_exec_config_hash 5\n\
                   porch_fn_runner_listed 1\n\
                   porch_fn_runner_config_valid{source=\"pod-cache-config\"} 1\n\
                   porch_fn_runner_function_config_problems 0\n";
    let answer = Answer { page: IsOurs(true), metrics: metrics.to_owned() };
    Asked { pod: pod.to_owned(), ips: vec![ip.parse().unwrap()], ready: true, answer: Ok(answer) }
}

fn facts_of(objects: &Value) -> Facts {
    let deployments: Vec<Deployment> = serde_json::from_value(objects["deployments"].clone()).unwrap();
    let services: Vec<Service> = serde_json::from_value(objects["services"].clone()).unwrap();
    let addresses = ["10.0.0.1:9445", "10.0.0.2:9445"];
    Facts {
        namespace: "porch-system".to_owned(),
        installed: installation(&deployments),
        services: services
            .into_iter()
            .map(|service| (service.name_any(), service.spec.unwrap_or_default()))
            .collect(),
        routers: vec![router("router-a", &addresses), router("router-b", &addresses)],
        runners: vec![runner("runner-a", "10.0.0.1"), runner("runner-b", "10.0.0.2")],
        functions: "porch-fn-system".to_owned(),
        function_pods: Ok(Vec::new()),
        more_function_pods: false,
        servers: Vec::new(),
        rights: Ok(Vec::new()),
        template: TemplateSource::BuiltIn,
    }
}

fn facts() -> Facts {
    facts_of(&objects())
}

/// The findings that are not `ok`.
fn faults(facts: &Facts) -> Vec<(Level, &'static str, String)> {
    let faults = all(facts).into_iter().filter(|finding| finding.level != Level::Ok);
    let faults = faults.map(|finding| {
        let is_settled = finding.text.contains("were not asked");
        assert_eq!(finding.fix.is_empty(), is_settled, "each says what to do: {finding:?}");
        (finding.level, finding.check, finding.text)
    });
    faults.collect()
}

/// The installation after changes to its objects.
fn changed(changes: &[(&str, Value)]) -> Facts {
    let mut objects = objects();
    for (pointer, value) in changes {
        *objects.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.clone();
    }
    facts_of(&objects)
}

/// Expects one fault, whose text contains `part`.
fn expect(facts: &Facts, level: Level, check: &str, part: &str) {
    let found = faults(facts);
    let [(of_level, of_check, text)] = found.as_slice() else { panic!("{check} {part}: {found:?}") };
    assert!((*of_level, *of_check) == (level, check) && text.contains(part), "{check} {part}: {found:?}");
}

const ROUTER: &str = "/deployments/0/spec/template/spec/containers/0/args";
const RUNNER: &str = "/deployments/1/spec/template/spec/containers/0/args";
const CALLER: &str = "/deployments/2/spec/template/spec/containers/0/args";
const DNS: &str = "dns:///function-runner-shards.porch-system:9445";
const SLICES: &str = "kubernetes:///porch-system/function-runner-shards:9445";

/// The routers' flags, with more.
fn router_flags(more: &[&str]) -> (&'static str, Value) {
    (ROUTER, json!([&[&format!("--runners={DNS}"), "--router-count=2"], more].concat()))
}

#[test]
fn each_fault_of_objects_and_flags_is_reported() {
    use Level::{Problem, Warning};
    for (level, check, flag, part) in [
        (Problem, "flags", "--no-such-flag", "Deployment function-router does not start: "),
        (Warning, "flags", "--router-count=7", "--router-count is 7, and there are 2 routers"),
        (Warning, "shutdown", "--drain-timeout=10m", "function-router is killed after 330s"),
        (Warning, "memory", "--max-inflight-bytes=1073741824", "may hold 2048 MiB of messages"),
        (
            Problem,
            "message sizes",
            "--max-request-body-size=8388608",
            "they differ: porch-server 6 MiB, function-router 8 MiB, function-runner-shards 6 MiB",
        ),
    ] {
        expect(&changed(&[router_flags(&[flag])]), level, check, part);
    }
    let tls = router_flags(&["--tls-cert=a", "--tls-key=b", "--tls-client-ca=c"]);
    expect(&changed(&[tls]), Problem, "flags", "only one side has --tls-cert: ");
    let listen_tls = router_flags(&["--listen-tls-cert=a", "--listen-tls-key=b"]);
    let dials = "function-router has --listen-tls-cert, and porch-server dials in plain text";
    expect(&changed(std::slice::from_ref(&listen_tls)), Warning, "flags", dials);
    // A proxy, which is called in plain text.
    let proxy = (CALLER, json!(["--function-runner=proxy:9445"]));
    expect(&changed(&[listen_tls, proxy]), Warning, "Porch", "proxy:9445");
    let peers = format!("--peers={SLICES}");
    for (level, flags, part) in [
        (Warning, [&peers, "--allowed-images=x/*"], "--allowed-images differs"),
        (Problem, [&peers, "--default-image-prefix=x"], "--default-image-prefix differs"),
        (Warning, ["--peers=", "--peers="], "the runners have no --peers: "),
        (Warning, [&peers, "--peers=other:9445"], "another ring"),
    ] {
        expect(&changed(&[(RUNNER, json!(flags))]), level, "flags", part);
    }
    let larger = json!(["--function-runner=function-router:9445", "--max-request-body-size=4194304"]);
    let leads = "Service function-router does not lead to Deployment function-router";
    for (level, check, pointer, value, part) in [
        (Problem, "services", "/services/0/spec/selector", json!({"app": "function-runner"}), leads),
        (Problem, "services", "/services/1/spec/clusterIP", json!("10.1.1.1"), "is not headless"),
        (Problem, "services", "/services/0/spec/ports", json!([]), "has no port 9445"),
        (Warning, "routers", "/deployments/0/status/readyReplicas", json!(1), "1 of 2 ready"),
        (Problem, "runners", "/deployments/1/status/readyReplicas", json!(0), "0 of 2 ready"),
        (
            Problem,
            "pod template",
            "/deployments/1/spec/template/spec/containers/0/env",
            json!([]),
            "no wrapper image",
        ),
        (
            Warning,
            "pod template",
            "/deployments/1/spec/template/spec/containers/0/image",
            json!("x:v2"),
            "has tag v1",
        ),
        (Warning, "Porch", CALLER, json!(["--function-runner=elsewhere:9445"]), "elsewhere:9445"),
        (Warning, "Porch", CALLER, json!([]), "nothing in namespace porch-system calls"),
        // Porch's own limit comes first.
        (Warning, "message sizes", CALLER, larger, "they differ"),
    ] {
        expect(&changed(&[(pointer, value)]), level, check, part);
    }
    let nothing = facts_of(&json!({"deployments": [], "services": []}));
    expect(&nothing, Problem, "programs", "namespace porch-system has neither routers nor runners");
}

#[test]
fn the_same_target_may_be_written_in_several_ways() {
    for peers in [
        "function-runner-shards:9445",
        "function-runner-shards.porch-system.svc.cluster.local.:9445",
        SLICES,
        DNS,
    ] {
        assert_eq!(faults(&changed(&[(RUNNER, json!([format!("--peers={peers}")]))])), [], "{peers}");
    }
}

#[test]
fn the_runners_service_has_to_suit_dns_only_where_dns_is_asked() {
    let labels = json!({"app.kubernetes.io/name": "function-runner-shards"});
    let dual_stack = json!({"clusterIP": "10.1.1.1", "ipFamilies": ["IPv4", "IPv6"], "selector": labels});
    let list = "static:///10.0.0.1:9445,10.0.0.2:9445";
    for (runners, peers, expected) in [
        (DNS, DNS, 2),
        ("function-runner-shards:9445", SLICES, 2),
        (SLICES, DNS, 2),
        (SLICES, SLICES, 0),
        (list, list, 0),
        ("dns:///elsewhere:9445", SLICES, 0),
        ("dns:///function-runner-shards.elsewhere:9445", "", 0),
    ] {
        let facts = changed(&[
            (ROUTER, json!([format!("--runners={runners}"), "--router-count=2"])),
            (RUNNER, json!([format!("--peers={peers}")])),
            ("/services/1/spec", dual_stack.clone()),
        ]);
        let found = faults(&facts).iter().filter(|fault| fault.1 == "services").count();
        assert_eq!(found, expected, "{runners} {peers}");
    }
}

#[test]
fn router_counts_may_be_as_far_apart_as_an_autoscaler_moves_them() {
    for (flag, there, is_fine) in
        [(1, 2, false), (2, 6, true), (2, 7, false), (6, 2, true), (7, 2, false), (usize::MAX, 2, false)]
    {
        let facts = changed(&[
            router_flags(&[&format!("--router-count={flag}")]),
            ("/deployments/0/spec/replicas", json!(there)),
            ("/deployments/0/status/readyReplicas", json!(there)),
        ]);
        assert_eq!(faults(&facts).is_empty(), is_fine, "{flag} {there}");
    }
}

#[test]
fn pods_that_cannot_start_are_counted_by_reason() {
    let pod = |status: Value| {
        let labels = json!({"app.kubernetes.io/managed-by": "porch-fn-runner"});
        serde_json::from_value(json!({"metadata": {"labels": labels}, "status": status})).unwrap()
    };
    let waiting = |container: &str| {
        let state = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let statuses = json!([{
            "name": container, "image": "x:v1", "state": state, "imageID": "", "ready": false, "restartCount": 0,
        }]);
        pod(json!({"containerStatuses": statuses}))
    };
    let unscheduled = json!({"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
    ]});
    let pods =
        vec![waiting("wrapper-server"), waiting("wrapper-server"), waiting("function"), pod(unscheduled)];
    let facts = Facts { function_pods: Ok(pods), ..facts() };
    let texts: Vec<_> = faults(&facts).into_iter().map(|fault| fault.2).collect();
    assert_eq!(
        texts,
        [
            "1 cannot start: container function of x:v1: ImagePullBackOff",
            "2 cannot start: container wrapper-server of x:v1: ImagePullBackOff",
            "1 cannot start: no node takes them: 0/1 nodes",
        ]
    );
}

#[test]
fn templates_and_leftovers_are_looked_at() {
    let config_map = |checked| TemplateSource::ConfigMap("templates".to_owned(), checked);
    for (level, template, part) in [
        (Level::Problem, config_map(Err("no container".to_owned())), "no container"),
        (Level::Warning, config_map(Ok(vec!["odd".to_owned()])), "ConfigMap templates: odd"),
        (Level::Unknown, TemplateSource::Unknown("forbidden".to_owned()), "forbidden"),
    ] {
        expect(&Facts { template, ..facts() }, level, "pod template", part);
    }
    assert_eq!(faults(&Facts { template: TemplateSource::Object, ..facts() }), []);
    let left = json!({
        "metadata": {
            "name": "a", "labels": {"fn.kpt.dev/image": "a"}, "annotations": {"fn.kpt.dev/template-version": "1"},
        },
        "spec": {"containers": [{"name": "function"}]},
    });
    let facts = Facts { function_pods: Ok(vec![serde_json::from_value(left).unwrap()]), ..facts() };
    expect(&facts, Level::Info, "leftovers", "1 pods of Porch's evaluators in porch-fn-system");
}

/// One runner, in the place of Porch's.
fn alone() -> Facts {
    let mut objects = objects();
    let mut deployment = objects["deployments"][1].clone();
    deployment["metadata"]["name"] = json!("function-runner");
    deployment["spec"]["replicas"] = json!(1);
    deployment["status"]["readyReplicas"] = json!(1);
    deployment["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["/home/nonroot/server"]);
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["--pod-namespace=porch-fn-system"]);
    objects["deployments"] = json!([deployment, objects["deployments"][2]]);
    objects["services"][0]["spec"]["selector"] = json!({"app.kubernetes.io/name": "function-runner-shards"});
    let mut facts = facts_of(&objects);
    facts.routers.clear();
    facts.runners.truncate(1);
    let answer = facts.runners[0].answer.as_mut().unwrap();
    answer.metrics =
        "porch_fn_runner_peers 0\nporch_fn_runner_listed 0\nporch_fn_runner_ring_hash 0\n".to_owned();
    facts
}

#[test]
fn a_runner_alone_has_no_faults() {
    let facts = alone();
    assert_eq!(faults(&facts), []);
    let facts = Facts { services: std::collections::BTreeMap::new(), ..facts };
    let findings = all(&facts);
    let missing = findings.iter().find(|finding| finding.level != Level::Ok).unwrap();
    assert_eq!(missing.fix, "kubectl apply -k deploy/single-runner");
}
