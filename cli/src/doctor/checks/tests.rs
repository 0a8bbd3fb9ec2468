//! A healthy installation, and what each fault in it is called.

mod callers;
mod discovery;
mod doubts;
mod golden;
mod originals;

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use super::super::facts::{Asked, RouterAnswer, RunnerAnswer, Silence, Template};
use super::super::finding::Level;
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

fn router(pod: &str, runners: &[&str]) -> Asked<RouterAnswer> {
    let shard = |address: &&str| {
        json!({
            "address": address, "state": "well", "in_flight": 0, "load": 0, "calls": 0, "failures": 0, "owned": 0,
            "share": 0.5, "pods": 0, "told": "yes", "version": "1.0.0", "exec_hash": "1",
        })
    };
    let shards: Vec<_> = runners.iter().map(shard).collect();
    let ring = json!({"scheme": 1, "virtual_nodes": 1, "slices": []});
    let mut status = json!({"ring": ring, "shards": shards, "images": []});
    let more = json!({"version": "1.0.0", "at_ms": 0, "truncated": false, "failures": [], "notes": []});
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status["totals"] = json!({"images": 0, "ready": 0, "starting": 0, "terminating": 0, "waiting": 0});
    let answer = RouterAnswer {
        status: serde_json::from_value(status).unwrap(),
        metrics: "porch_fn_router_ring_hash 7\n".to_owned(),
    };
    Asked { pod: pod.to_owned(), ips: Vec::new(), ready: true, answer: Ok(answer) }
}

fn runner(pod: &str, ip: &str) -> Asked<RunnerAnswer> {
    let metrics = "porch_fn_runner_ring_hash 7\n\
                   porch_fn_runner_exec_config_hash 5\n\
                   porch_fn_runner_listed 1\n\
                   porch_fn_runner_config_valid{source=\"pod-cache-config\"} 1\n\
                   porch_fn_runner_function_config_problems 0\n";
    let answer = RunnerAnswer { ours: true, metrics: metrics.to_owned() };
    Asked { pod: pod.to_owned(), ips: vec![ip.parse().unwrap()], ready: true, answer: Ok(answer) }
}

fn facts_of(objects: &Value) -> Facts {
    let deployments: Vec<Deployment> = serde_json::from_value(objects["deployments"].clone()).unwrap();
    let addresses = ["10.0.0.1:9445", "10.0.0.2:9445"];
    Facts {
        namespace: "porch-system".to_owned(),
        installed: installation(&deployments),
        services: serde_json::from_value(objects["services"].clone()).unwrap(),
        routers: vec![router("router-a", &addresses), router("router-b", &addresses)],
        runners: vec![runner("runner-a", "10.0.0.1"), runner("runner-b", "10.0.0.2")],
        functions: "porch-fn-system".to_owned(),
        function_pods: Ok(Vec::new()),
        more_function_pods: false,
        servers: Vec::new(),
        rights: Ok(Vec::new()),
        template: Template::BuiltIn,
    }
}

fn facts() -> Facts {
    facts_of(&objects())
}

/// Those that are not all right.
fn faults(facts: &Facts) -> Vec<(Level, &'static str, String)> {
    let faults = all(facts).into_iter().filter(|finding| finding.level != Level::Ok);
    faults
        .map(|finding| {
            assert!(!finding.fix.is_empty(), "each says what to do: {finding:?}");
            (finding.level, finding.check, finding.text)
        })
        .collect()
}

/// The one fault of an installation whose objects are changed.
fn changed(pointer: &str, value: Value) -> (Level, &'static str, String) {
    let mut objects = objects();
    *objects.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    let mut faults = faults(&facts_of(&objects));
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults.remove(0)
}

#[test]
fn an_installation_that_is_well_has_no_faults() {
    let findings = all(&facts());
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    let mut checks: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    checks.dedup();
    let expected = [
        "routers",
        "runners",
        "services",
        "message sizes",
        "flags",
        "Porch",
        "rights",
        "discovery",
        "reachability",
        "ring",
        "executables",
        "versions",
        "configuration",
        "pod template",
        "function pods",
    ];
    assert_eq!(checks, expected);
}

#[test]
fn flags_that_do_not_agree_are_named() {
    const ROUTER: &str = "/deployments/0/spec/template/spec/containers/0/args";
    const RUNNER: &str = "/deployments/1/spec/template/spec/containers/0/args";
    let runners = "--runners=dns:///function-runner-shards.porch-system:9445";
    let peers = "--peers=kubernetes:///porch-system/function-runner-shards:9445";
    let router = |more: &[&str]| changed(ROUTER, json!([&[runners, "--router-count=2"], more].concat()));
    let runner = |more: &[&str]| changed(RUNNER, json!([&[peers], more].concat()));

    assert_eq!(
        router(&["--max-request-body-size=8388608"]),
        (
            Level::Problem,
            "message sizes",
            "they differ: porch-server 6 MiB, function-router 8 MiB, function-runner-shards 6 MiB".to_owned()
        )
    );
    assert_eq!(router(&["--router-count=7"]).2, "--router-count is 7, and there are 2 routers");
    assert_eq!(router(&["--drain-timeout=10m"]).1, "shutdown");
    assert_eq!(router(&["--max-inflight-bytes=1073741824"]).1, "memory");
    assert_eq!(router(&["--no-such-flag"]).0, Level::Problem);
    assert_eq!(
        router(&["--tls-cert=a", "--tls-key=b", "--tls-client-ca=c"]).2,
        "only one side has --tls-cert: routers and runners cannot talk to each other"
    );
    assert_eq!(runner(&["--allowed-images=x/*"]).1, "flags");
    assert_eq!(runner(&["--default-image-prefix=x"]).0, Level::Problem);
    assert_eq!(
        runner(&["--peers="]).2,
        "the runners have no --peers: each takes itself for the owner of every function"
    );
    assert!(runner(&["--peers=other:9445"]).2.contains("another ring"));
    assert_eq!(
        router(&["--listen-tls-cert=a", "--listen-tls-key=b"]).2,
        "function-router has --listen-tls-cert, and porch-server dials in plain text"
    );
}

#[test]
fn the_same_target_may_be_written_in_several_ways() {
    for peers in [
        "function-runner-shards:9445",
        "function-runner-shards.porch-system.svc.cluster.local.:9445",
        "kubernetes:///porch-system/function-runner-shards:9445",
    ] {
        let mut objects = objects();
        objects["deployments"][1]["spec"]["template"]["spec"]["containers"][0]["args"] =
            json!([format!("--peers={peers}")]);
        assert_eq!(faults(&facts_of(&objects)), [], "{peers}");
    }
}

#[test]
fn objects_that_are_wrong_are_named() {
    let (level, check, text) = changed("/services/0/spec/selector", json!({"app": "function-runner"}));
    assert_eq!((level, check), (Level::Problem, "services"));
    assert_eq!(text, "Service function-router does not lead to Deployment function-router");
    assert_eq!(changed("/services/1/spec/clusterIP", json!("10.1.1.1")).0, Level::Problem);
    assert_eq!(changed("/services/0/spec/ports", json!([])).1, "services");
    assert_eq!(changed("/deployments/0/status/readyReplicas", json!(1)).2, "1 of 2 ready");
    assert_eq!(changed("/deployments/1/status/readyReplicas", json!(0)).0, Level::Problem);
    let env = "/deployments/1/spec/template/spec/containers/0/env";
    assert_eq!(changed(env, json!([])).1, "pod template");
    assert!(
        changed("/deployments/1/spec/template/spec/containers/0/image", json!("x:v2")).2.contains("tag v1")
    );
    let args = "/deployments/2/spec/template/spec/containers/0/args";
    assert_eq!(changed(args, json!(["--function-runner=elsewhere:9445"])).1, "Porch");
    assert_eq!(changed(args, json!([])).0, Level::Warning);
    let larger = ["--function-runner=function-router:9445", "--max-request-body-size=4194304"];
    assert_eq!(changed(args, json!(larger)).0, Level::Warning, "Porch's own limit comes first");
    let nothing = faults(&facts_of(&json!({"deployments": [], "services": []})));
    assert_eq!(nothing[0].2, "namespace porch-system has neither routers nor runners");
}

#[test]
fn what_the_programs_say_is_compared() {
    let check = |change: fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        let mut faults = faults(&facts);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.remove(0)
    };
    let found = check(|facts| {
        let answer = facts.routers[0].answer.as_mut().unwrap();
        answer.status.shards[1].info.state = "unreachable".to_owned();
    });
    assert_eq!(found.2, "to router router-a runner 10.0.0.2:9445 is unreachable");
    let found = check(|facts| {
        facts.routers[1].answer.as_mut().unwrap().status.discovery_error = Some("no such host".to_owned());
    });
    assert_eq!(found.2, "router router-b cannot look up its runners: no such host");
    let found = check(|facts| {
        let answer = facts.runners[1].answer.as_mut().unwrap();
        answer.metrics = answer.metrics.replace("exec_config_hash 5", "exec_config_hash 6");
    });
    assert_eq!((found.0, found.1), (Level::Problem, "executables"));
    assert_eq!(found.2, "the exec runtimes are configured differently: runner-a | runner-b");
    let found = check(|facts| {
        let answer = facts.runners[0].answer.as_mut().unwrap();
        answer.metrics = answer.metrics.replace("ring_hash 7", "ring_hash 8");
    });
    assert_eq!(found.1, "ring");
    let found = check(|facts| {
        let answer = facts.runners[0].answer.as_mut().unwrap();
        answer.metrics = answer.metrics.replace("cache-config\"} 1", "cache-config\"} 0");
    });
    assert_eq!(found.2, "on 1 of 2 runners: --pod-cache-config cannot be used");
    let found = check(|facts| facts.routers[0].answer.as_mut().unwrap().status.version = "1.1.0".to_owned());
    assert_eq!(found.2, "several at once: 1.0.0, 1.1.0");
    let found = check(|facts| facts.runners[0].answer = Err(Silence::Failed("forbidden".to_owned())));
    assert_eq!((found.0, found.1), (Level::Unknown, "runners"));
    assert_eq!(found.2, "pod runner-a is ready, and could not be asked how it is: forbidden");
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
    let template = |template| faults(&Facts { template, ..facts() });
    let broken = Template::ConfigMap("templates".to_owned(), Err("no container".to_owned()));
    assert_eq!(template(broken)[0].0, Level::Problem);
    let odd = Template::ConfigMap("templates".to_owned(), Ok(vec!["odd".to_owned()]));
    assert_eq!(template(odd), [(Level::Warning, "pod template", "ConfigMap templates: odd".to_owned())]);
    assert_eq!(template(Template::Unknown("forbidden".to_owned()))[0].0, Level::Unknown);
    assert!(template(Template::Object).is_empty());

    let left = json!({
        "metadata": {
            "name": "a", "labels": {"fn.kpt.dev/image": "a"}, "annotations": {"fn.kpt.dev/template-version": "1"},
        },
        "spec": {"containers": [{"name": "function"}]},
    });
    let facts = Facts { function_pods: Ok(vec![serde_json::from_value(left).unwrap()]), ..facts() };
    let text = "1 pods of Porch's evaluators in porch-fn-system".to_owned();
    assert_eq!(faults(&facts), [(Level::Info, "leftovers", text)]);
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
    let facts = Facts { services: Vec::new(), ..facts };
    let findings = all(&facts);
    let missing = findings.iter().find(|finding| finding.level != Level::Ok).unwrap();
    assert_eq!(missing.fix, "kubectl apply -k deploy/single-runner");
}
