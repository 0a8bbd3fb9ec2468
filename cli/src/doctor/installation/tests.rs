//! What Deployments are taken for.

use serde_json::{Value, json};

use super::super::porch::{EVALUATOR_VARIABLE, RUNNER_VARIABLE};
use super::*;

/// `name` and pods of Deployments that may be Porch's function runner, all of which start pods.
fn runners(expected: &[(&str, i32)]) -> Vec<PorchRunner> {
    let runner = |&(deployment, pods): &(&str, i32)| PorchRunner {
        deployment: deployment.to_owned(),
        pods,
        starts_pods: true,
    };
    expected.iter().map(runner).collect()
}

fn deployment(name: &str, container: &Value) -> Deployment {
    let mut pod = json!({"serviceAccountName": "account", "containers": [container]});
    pod["terminationGracePeriodSeconds"] = json!(330);
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": template},
        "status": {"readyReplicas": 2},
    }))
    .unwrap()
}

#[test]
fn programs_are_found_with_the_flags_they_run_with() {
    let found = installation(&[
        deployment(
            "renamed-router",
            &json!({
                "name": "router", "image": "x/function-runner:v1", "command": ["/porch-fn-router"],
                "args": ["--runners=shards:9445", "-max-request-body-size", "7"],
                "resources": {"limits": {"memory": "1Mi"}},
            }),
        ),
        deployment(
            "function-runner-shards",
            &json!({
                "name": "runner", "command": ["/porch-fn-runner"], "args": ["--peers=shards:9445"],
                "env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x/wrapper:v1"}, {"name": "POD_IP", "valueFrom": {}}],
            }),
        ),
        deployment(
            "function-runner",
            &json!({"name": "function-runner", "command": ["/home/nonroot/server", "--pod-namespace=x"]}),
        ),
        deployment("other", &json!({"name": "other", "command": ["/server"], "args": ["--address=x"]})),
    ]);
    let router = found.router.unwrap();
    assert_eq!((router.deployment.as_str(), router.replicas, router.ready), ("renamed-router", 3, 2));
    assert_eq!((router.account.as_str(), router.memory, router.grace), ("account", Some(1_048_576), 330));
    assert_eq!(router.flags.unwrap().max_request_body_size, 7);
    let runner = found.runner.unwrap().flags.unwrap();
    assert_eq!((runner.wrapper_server_image.as_str(), runner.admin_port), ("x/wrapper:v1", 9464));
    assert_eq!(found.originals, runners(&[("function-runner", 3)]));
    assert!(found.callers.is_empty());
}

#[test]
fn a_runner_alone_goes_by_the_originals_name() {
    let command =
        json!(["/home/nonroot/server", "--pod-namespace=functions", "--functions=/home/nonroot/functions"]);
    let found = installation(&[deployment("function-runner", &json!({"name": "x", "command": command}))]);
    assert!(found.router.is_none() && found.originals.is_empty());
    let runner = found.runner.unwrap();
    assert!(runner.may_be_original);
    assert_eq!(runner.flags.unwrap().pod_namespace, "functions");
    for image in ["ghcr.io/kptdev/porch-function-runner:v1.6.2", "x:5000/function-runner@sha256:abc"] {
        for command in [json!(null), json!(["/server"]), json!(["/home/nonroot/server"])] {
            let renamed = json!({"name": "x", "image": image, "command": command});
            let found = installation(&[deployment("runner-of-porch", &renamed)]);
            assert!(found.runner.is_some_and(|runner| runner.may_be_original), "{image} {command}");
        }
    }
    let other = json!({"name": "x", "image": "x/function-runner:v1", "command": ["/bin/sh"]});
    assert!(installation(&[deployment("other", &other)]).runner.is_none());
}

#[test]
fn beside_routers_the_originals_name_stands_for_the_original() {
    let router = json!({"name": "router", "command": ["/porch-fn-router"], "args": ["--runners=a"]});
    let original = json!({"name": "x", "command": ["/server"], "args": ["--pod-namespace=functions"]});
    let mut original = deployment("function-runner", &original);
    original.spec.as_mut().unwrap().replicas = Some(0);
    let found = installation(&[deployment("function-router", &router), original]);
    assert!(found.router.is_some() && found.runner.is_none());
    assert_eq!(found.originals, runners(&[("function-runner", 0)]));
}

#[test]
fn of_several_originals_those_that_run_count() {
    let original = |name: &str, replicas| {
        let container =
            json!({"name": "x", "image": "porch-function-runner", "args": ["--pod-namespace=functions"]});
        let mut original = deployment(name, &container);
        original.spec.as_mut().unwrap().replicas = Some(replicas);
        original
    };
    let all = [original("a", 0), original("b", 2), original("c", 0), original("d", 1), original("e", 0)];
    let found = installation(&all);
    assert_eq!(found.runner.unwrap().deployment, "b");
    assert_eq!(found.originals, runners(&[("d", 1), ("a", 0), ("c", 0), ("e", 0)]));

    let runner = json!({"name": "runner", "command": ["/porch-fn-runner"]});
    let found = installation(&[&all[..], &[deployment("shards", &runner)]].concat());
    assert_eq!(found.runner.unwrap().deployment, "shards");
    assert_eq!(found.originals[..2], runners(&[("b", 2), ("d", 1)]));
}

#[test]
fn other_containers_hide_nothing() {
    let server = json!({"name": "runner", "command": ["/home/nonroot/server", "--max-waitlist-length=7"]});
    let of_image =
        json!({"name": "runner", "args": ["--pod-namespace=functions", "--max-waitlist-length=7"]});
    let ours =
        json!({"name": "runner", "command": ["/porch-fn-runner"], "args": ["--max-waitlist-length=7"]});
    // Nor is one of them taken for a program of Porch's that calls.
    let agent =
        json!({"name": "agent", "args": ["--max-waitlist-length=3", "--function-runner=elsewhere:9445"]});
    let shell = json!({"name": "agent", "command": ["/bin/sh", "-c", "sleep 1d"]});
    for program in [&server, &of_image, &ours] {
        for other in [&agent, &shell] {
            for order in [[program, other], [other, program]] {
                let mut deployment = deployment("function-runner", program);
                let containers = serde_json::from_value(json!(order)).unwrap();
                deployment.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers = containers;
                let found = installation(&[deployment]);
                let flags = found.runner.unwrap().flags.unwrap();
                assert_eq!(flags.max_waitlist_length, 7, "{order:?}");
                assert!(found.originals.is_empty() && found.callers.is_empty(), "{order:?}");
            }
        }
    }
}

#[test]
fn who_may_use_function_pods_is_told_by_flags_and_variables() {
    let runner = |command: &str, args: Value| {
        deployment("function-runner", &json!({"name": "x", "command": [command], "args": args}))
    };
    let with = |field: &str, value: Value| {
        let mut runner = json!({"name": "x", "command": ["/home/nonroot/server"]});
        runner[field] = value;
        deployment("function-runner", &runner)
    };
    let may_use =
        |one: &Deployment| evaluator_of(one).is_some_and(|evaluator| evaluator.may_use("porch-fn-system"));
    let server = "/home/nonroot/server";
    for (expected, what, command, args) in [
        (true, "one that says so", server, json!(["--pod-namespace=porch-fn-system"])),
        (true, "a flag of a newer Porch", server, json!(["--pod-namespace=porch-fn-system", "--new=1"])),
        (true, "a variable", server, json!(["--pod-namespace=$(ELSEWHERE)"])),
        (false, "executables alone", server, json!(["--functions=/home/nonroot/functions"])),
        (false, "other pods", server, json!(["--pod-namespace=a"])),
        (false, "one of ours", "/porch-fn-runner", json!([])),
    ] {
        assert_eq!(may_use(&runner(command, args)), expected, "{what}");
    }
    assert!(may_use(&with("env", json!([{"name": "WRAPPER_SERVER_IMAGE", "valueFrom": {}}]))));
    assert!(may_use(&with("envFrom", json!([{"configMapRef": {"name": "settings"}}]))));
    let somebody = deployment("other", &json!({"name": "x", "command": [server]}));
    assert!(!may_use(&somebody));
}

#[test]
fn porch_server_starts_pods_if_its_container_says_so() {
    let server = |more: &Value| {
        let mut container = json!({
            "name": "porch-server", "image": "x/porch-server:v1", "args": ["--function-runner=function-runner:9445"],
            "envFrom": [{"configMapRef": {"name": "porch-db-config"}}],
        });
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        installation(&[deployment("porch-server", &container)]).servers
    };
    assert_eq!(server(&json!({})), []);
    let flags = |flags: &[&str]| {
        let args = [&["--function-runner=a:1"], flags].concat();
        json!({"args": args})
    };
    for more in [
        json!({"env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x"}]}),
        json!({"ports": [{"containerPort": 9447}]}),
        flags(&["--pod-evaluator-port=9448"]),
    ] {
        let found = server(&more);
        let [evaluator] = found.as_slice() else { panic!("{more}: {found:?}") };
        assert!(evaluator.is_server && evaluator.may_use("porch-fn-system") && !evaluator.may_use("a"));
        assert_eq!((evaluator.container.as_str(), evaluator.pods), ("porch-server", 3));
        assert_eq!(evaluator.template, "base-pod-template");
        assert_eq!(evaluator.selector["app"], "porch-server");
    }
    let found = server(&flags(&["--pod-namespace=a", "--base-pod-template-name", "mine"]));
    assert!(found[0].may_use("a") && found[0].template == "mine");
    // Of a flag that is given twice Go takes the last.
    let found = server(&flags(&["--pod-namespace=a", "-pod-namespace", "b", "--pod-namespace=c"]));
    assert!(found[0].may_use("c") && !found[0].may_use("a"));
}

#[test]
fn variables_count_as_far_as_they_are_written_there() {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let runner = json!({
        "name": "runner", "command": ["/porch-fn-runner"], "args": ["--peers=shards.$(POD_NAMESPACE):9445"],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
            {"name": "WRAPPER_SERVER_IMAGE", "valueFrom": {"configMapKeyRef": {"name": "images", "key": "wrapper"}}},
        ],
    });
    let mut deployment = deployment("function-runner-shards", &runner);
    deployment.metadata.namespace = Some("home".to_owned());
    let flags = installation(&[deployment]).runner.unwrap().flags.unwrap();
    assert_eq!((flags.peers.as_str(), flags.namespace.as_str()), ("shards.home:9445", "home"));
    assert_eq!(flags.wrapper_server_image, ELSEWHERE);
}

#[test]
fn a_namespace_from_elsewhere_is_the_pods() {
    let container = json!({
        "name": "runner", "command": ["/porch-fn-runner"], "envFrom": [{"configMapRef": {"name": "settings"}}],
    });
    let flags = installation(&[deployment("r", &container)]).runner.unwrap().flags.unwrap();
    assert_eq!((flags.namespace.as_str(), flags.wrapper_server_image.as_str()), ("", ELSEWHERE));
}

#[test]
fn flags_that_a_program_refuses_are_told_in_its_words() {
    let container = json!({"name": "x", "command": ["/porch-fn-router"], "args": ["--runers=a"]});
    let error = installation(&[deployment("r", &container)]).router.unwrap().flags.unwrap_err();
    assert!(error.contains("--runers"), "{error}");
}

#[test]
fn porchs_programs_are_known_by_whom_they_call() {
    let server = json!({
        "name": "s", "command": ["/home/nonroot/porch"],
        "args": ["--function-runner=function-runner:9445", "--max-request-body-size", "10"],
    });
    // There the first one is that of its own API.
    let v15 = json!({
        "name": "s", "args": [
            "--function-runner=function-runner:9445", "--max-request-body-size=10",
            "--function-runner-grpc-max-message-size=12",
        ],
    });
    let controllers = |size: &str, env: Value| json!({"name": "c", "args": [size], "env": env});
    let april = controllers(
        "--max-grpc-message-size=11",
        json!([{"name": RUNNER_VARIABLE, "value": "function-runner:9445"}]),
    );
    let next = controllers(
        "--packagerevisions.max-grpc-message-size=13",
        json!([
            {"name": RUNNER_VARIABLE, "value": "function-runner:9445"},
            {"name": EVALUATOR_VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        ]),
    );
    let renders = "--repositories.create-v1alpha2-rpkg=true";
    let found = installation(&[
        deployment("porch-server", &server),
        deployment("porch-april", &april),
        deployment("porch-v15", &v15),
        deployment("porch-next", &next),
        deployment("porch-controllers", &controllers(renders, json!([{"name": EVALUATOR_VARIABLE}]))),
        deployment("porch-packages", &controllers("", json!([]))),
    ]);
    let caller = |deployment: &str, setting, address: &str, max_message| Caller {
        deployment: deployment.to_owned(),
        setting,
        address: address.to_owned(),
        max_message,
    };
    let runner = "function-runner:9445";
    let expected = [
        caller("porch-server", "--function-runner", runner, 10),
        caller("porch-april", RUNNER_VARIABLE, runner, 11),
        caller("porch-v15", "--function-runner", runner, 12),
        caller("porch-next", RUNNER_VARIABLE, runner, 13),
        caller("porch-next", EVALUATOR_VARIABLE, ELSEWHERE, 13),
    ];
    assert_eq!(found.callers, expected);
    assert_eq!(found.without_evaluator, ["porch-controllers"]);
}

/// Its flags are the function runner's since its pod evaluator moved there.
#[test]
fn porch_server_that_evaluates_pods_is_no_function_runner() {
    let server = json!({
        "name": "porch-server", "image": "ghcr.io/kptdev/porch-server:latest",
        "args": ["--function-runner=function-runner:9445", "--pod-namespace=porch-fn-system"],
        "env": [{"name": "WRAPPER_SERVER_IMAGE", "value": "x/wrapper:v1"}],
    });
    let found = installation(&[deployment("porch-server", &server)]);
    assert!(found.runner.is_none() && found.originals.is_empty(), "{found:?}");
    assert_eq!(found.callers.len(), 1);
}
