//! How Deployments are recognised.

use serde_json::{Value, json};

use super::super::porch::{EVALUATOR_VARIABLE, RUNNER_VARIABLE};
use super::super::workload::ELSEWHERE;
use super::*;

fn deployment(name: &str, containers: &[&Value]) -> Deployment {
    let pod = json!({
        "serviceAccountName": "account", "terminationGracePeriodSeconds": 330, "containers": containers,
    });
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "home"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": template},
        "status": {"readyReplicas": 2},
    }))
    .unwrap()
}

/// The installation of Deployments with one container each.
fn found(deployments: &[(&str, Value)]) -> Installation {
    let deployments = deployments.iter().map(|(name, container)| deployment(name, &[container]));
    installation(&deployments.collect::<Vec<_>>())
}

/// The Deployments that may be Porch's function runner, and their pods. All of them start function pods.
fn originals(found: &Installation) -> Vec<(&str, i32)> {
    assert!(found.originals.iter().all(|original| original.starts_pods));
    found.originals.iter().map(|original| (original.workload.name.as_str(), original.workload.pods)).collect()
}

fn runner_flags(found: Installation) -> porch_fn_runner::Flags {
    found.runner.unwrap().flags.unwrap()
}

#[test]
fn programs_are_found_with_the_flags_they_run_with() {
    let found = found(&[
        (
            "renamed-router",
            json!({
                "name": "router", "image": "x/function-runner:v1", "command": ["/porch-fn-router"],
                "args": ["--runners=shards:9445", "-max-request-body-size", "7"],
                "resources": {"limits": {"memory": "1Mi"}},
            }),
        ),
        (
            "function-runner-shards",
            json!({
                "name": "runner", "command": ["/porch-fn-runner"], "args": ["--peers=shards:9445"],
                "env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x/wrapper:v1"}, {"name": "POD_IP", "valueFrom": {}}],
            }),
        ),
        ("function-runner", json!({"name": "x", "command": ["/home/nonroot/server", "--pod-namespace=x"]})),
        ("other", json!({"name": "other", "command": ["/server"], "args": ["--address=x"]})),
    ]);
    // Beside routers the original's name stands for the original.
    assert_eq!(originals(&found), [("function-runner", 3)]);
    assert!(found.callers.is_empty());
    let router = found.router.as_ref().unwrap();
    let Workload { name, account, replicas, ready, grace, .. } = &router.workload;
    assert_eq!((name.as_str(), *replicas, *ready), ("renamed-router", 3, 2));
    assert_eq!((account.as_str(), router.memory, *grace), ("account", Some(1_048_576), 330));
    assert_eq!(router.flags.as_ref().unwrap().max_request_body_size, 7);
    let runner = runner_flags(found);
    assert_eq!((runner.wrapper_server_image.as_str(), runner.admin_port), ("x/wrapper:v1", 9464));
}

#[test]
fn a_runner_alone_goes_by_the_originals_name_or_image() {
    let server = json!(["/home/nonroot/server", "--pod-namespace=functions"]);
    let named = found(&[("function-runner", json!({"name": "x", "command": server}))]);
    assert!(named.originals.is_empty() && named.runner.as_ref().unwrap().may_be_original);
    assert_eq!(runner_flags(named).pod_namespace, "functions");
    for image in ["ghcr.io/kptdev/porch-function-runner:v1.6.2", "x:5000/function-runner@sha256:abc"] {
        for command in [json!(null), json!(["/server"]), json!(["/home/nonroot/server"])] {
            let found = found(&[("renamed", json!({"name": "x", "image": image, "command": command}))]);
            assert!(found.runner.is_some_and(|runner| runner.may_be_original), "{image} {command}");
        }
    }
    let other = json!({"name": "x", "image": "x/function-runner:v1", "command": ["/bin/sh"]});
    assert!(found(&[("other", other)]).runner.is_none());
}

#[test]
fn of_several_originals_those_that_run_count() {
    let original = |name: &str, replicas| {
        let container =
            json!({"name": "x", "image": "porch-function-runner", "args": ["--pod-namespace=functions"]});
        let mut original = deployment(name, &[&container]);
        original.spec.as_mut().unwrap().replicas = Some(replicas);
        original
    };
    let all = [original("a", 0), original("b", 2), original("c", 0), original("d", 1), original("e", 0)];
    let found = installation(&all);
    assert_eq!(found.runner.as_ref().unwrap().workload.name, "b");
    assert_eq!(originals(&found), [("d", 1), ("a", 0), ("c", 0), ("e", 0)]);
    let ours = deployment("shards", &[&json!({"name": "runner", "command": ["/porch-fn-runner"]})]);
    let found = installation(&[&all[..], &[ours]].concat());
    assert_eq!(found.runner.as_ref().unwrap().workload.name, "shards");
    assert_eq!(originals(&found)[..2], [("b", 2), ("d", 1)]);
}

#[test]
fn other_containers_hide_nothing() {
    let waitlist = "--max-waitlist-length=7";
    let server = json!({"name": "runner", "command": ["/home/nonroot/server", waitlist]});
    let of_image = json!({"name": "runner", "args": ["--pod-namespace=functions", waitlist]});
    let ours = json!({"name": "runner", "command": ["/porch-fn-runner"], "args": [waitlist]});
    // Nor is one of them taken for a program of Porch's that calls.
    let agent =
        json!({"name": "agent", "args": ["--max-waitlist-length=3", "--function-runner=elsewhere:9445"]});
    let shell = json!({"name": "agent", "command": ["/bin/sh", "-c", "sleep 1d"]});
    for program in [&server, &of_image, &ours] {
        for other in [&agent, &shell] {
            for order in [[program, other], [other, program]] {
                let found = installation(&[deployment("function-runner", &order)]);
                assert!(found.originals.is_empty() && found.callers.is_empty(), "{order:?}");
                assert_eq!(runner_flags(found).max_waitlist_length, 7, "{order:?}");
            }
        }
    }
}

#[test]
fn function_runners_that_may_use_function_pods_are_known_by_flags_and_variables() {
    let server = |more: Value| {
        let mut container = json!({"name": "x", "command": ["/home/nonroot/server"]});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container
    };
    for (expected, name, container) in [
        (true, "function-runner", server(json!({"args": ["--pod-namespace=porch-fn-system"]}))),
        // A flag of a newer Porch.
        (true, "function-runner", server(json!({"args": ["--pod-namespace=porch-fn-system", "--new=1"]}))),
        (true, "function-runner", server(json!({"args": ["--pod-namespace=$(ELSEWHERE)"]}))),
        (
            true,
            "function-runner",
            server(json!({"env": [{"name": "WRAPPER_SERVER_IMAGE", "valueFrom": {}}]})),
        ),
        (true, "function-runner", server(json!({"envFrom": [{"configMapRef": {"name": "settings"}}]}))),
        // Executables alone.
        (false, "function-runner", server(json!({"args": ["--functions=/home/nonroot/functions"]}))),
        (false, "function-runner", server(json!({"args": ["--pod-namespace=a"]}))),
        (false, "function-runner", server(json!({"command": ["/porch-fn-runner"]}))),
        (false, "other", server(json!({}))),
    ] {
        let evaluator = evaluator_of(&Workload::from(&deployment(name, &[&container])));
        let may_use = evaluator.is_some_and(|evaluator| evaluator.may_use("porch-fn-system"));
        assert_eq!(may_use, expected, "{name} {container}");
    }
}

#[test]
fn porch_server_starts_pods_if_its_container_says_so() {
    let server = |more: Value| {
        let mut container = json!({
            "name": "porch-server", "image": "x/porch-server:v1", "args": ["--function-runner=function-runner:9445"],
            "envFrom": [{"configMapRef": {"name": "porch-db-config"}}],
        });
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let found = found(&[("porch-server", container)]);
        // Its flags are the function runner's since its pod evaluator moved there.
        assert!(
            found.runner.is_none() && found.originals.is_empty() && found.callers.len() == 1,
            "{found:?}"
        );
        found.servers
    };
    assert_eq!(server(json!({})), []);
    for more in [
        json!({"env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x"}]}),
        json!({"ports": [{"containerPort": 9447}]}),
        json!({"args": ["--function-runner=a:1", "--pod-evaluator-port=9448"]}),
    ] {
        let found = server(more);
        let [evaluator] = found.as_slice() else { panic!("{found:?}") };
        assert!(evaluator.is_server && evaluator.may_use("porch-fn-system") && !evaluator.may_use("a"));
        assert_eq!((evaluator.container.as_str(), evaluator.workload.pods), ("porch-server", 3));
        assert_eq!(evaluator.template, "base-pod-template");
        assert_eq!(evaluator.workload.selector["app"], "porch-server");
    }
    // Of a flag that is given twice Go takes the last.
    let flags = [
        "--function-runner=a:1",
        "--pod-namespace=a",
        "-pod-namespace",
        "b",
        "--pod-namespace=c",
        "--base-pod-template-name",
        "mine",
    ];
    let found = server(json!({"args": flags}));
    assert!(found[0].may_use("c") && !found[0].may_use("a") && found[0].template == "mine");
}

#[test]
fn variables_count_as_far_as_they_are_written_there() {
    let wrapper = json!({"configMapKeyRef": {"name": "images", "key": "wrapper"}});
    let runner = json!({
        "name": "runner", "command": ["/porch-fn-runner"], "args": ["--peers=shards.$(POD_NAMESPACE):9445"],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "WRAPPER_SERVER_IMAGE", "valueFrom": wrapper},
        ],
    });
    let flags = runner_flags(found(&[("r", runner)]));
    assert_eq!((flags.peers.as_str(), flags.namespace.as_str()), ("shards.home:9445", "home"));
    assert_eq!(flags.wrapper_server_image, ELSEWHERE);
    // Without a value the namespace is the pod's.
    let env_from = json!([{"configMapRef": {"name": "settings"}}]);
    let runner = json!({"name": "runner", "command": ["/porch-fn-runner"], "envFrom": env_from});
    let flags = runner_flags(found(&[("r", runner)]));
    assert_eq!((flags.namespace.as_str(), flags.wrapper_server_image.as_str()), ("", ELSEWHERE));
    let wrong = json!({"name": "x", "command": ["/porch-fn-router"], "args": ["--runers=a"]});
    let error = found(&[("r", wrong)]).router.unwrap().flags.unwrap_err();
    assert!(error.contains("--runers"), "{error}");
}

#[test]
fn porchs_programs_are_known_by_the_addresses_they_call() {
    let runner = "function-runner:9445";
    let variable = json!([{"name": RUNNER_VARIABLE, "value": runner}]);
    let elsewhere = json!({"configMapKeyRef": {"name": "a", "key": "b"}});
    let both = json!([variable[0], {"name": EVALUATOR_VARIABLE, "valueFrom": elsewhere}]);
    let flag = "--function-runner=function-runner:9445";
    let program = |args: &[&str], env: &Value| json!({"name": "x", "args": args, "env": env});
    let empty = json!([{"name": EVALUATOR_VARIABLE}]);
    let found = found(&[
        ("porch-server", program(&[flag, "--max-request-body-size", "10"], &json!([]))),
        ("porch-april", program(&["--max-grpc-message-size=11"], &variable)),
        // There the first one is that of its own API.
        (
            "porch-v15",
            program(
                &[flag, "--max-request-body-size=10", "--function-runner-grpc-max-message-size=12"],
                &json!([]),
            ),
        ),
        ("porch-next", program(&["--packagerevisions.max-grpc-message-size=13"], &both)),
        ("porch-controllers", program(&["--repositories.create-v1alpha2-rpkg=true"], &empty)),
        ("porch-packages", program(&[], &json!([]))),
    ]);
    let callers: Vec<_> = found
        .callers
        .iter()
        .map(|caller| {
            (caller.deployment.as_str(), caller.setting, caller.address.as_str(), caller.max_message)
        })
        .collect();
    let expected = [
        ("porch-server", "--function-runner", runner, 10),
        ("porch-april", RUNNER_VARIABLE, runner, 11),
        ("porch-v15", "--function-runner", runner, 12),
        ("porch-next", RUNNER_VARIABLE, runner, 13),
        ("porch-next", EVALUATOR_VARIABLE, ELSEWHERE, 13),
    ];
    assert_eq!(callers, expected);
    assert_eq!(found.without_evaluator, ["porch-controllers"]);
}
