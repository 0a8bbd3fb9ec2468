//! Tests of the checks: a healthy installation, and the finding for each fault.

mod callers;
mod golden;
mod live;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use porch_fn_status_page::{ImageStatus, StartError, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::facts::{Answer, Asked, MAX_ASKED, TemplateSource};
use super::super::installation::installation;
use super::*;

const ROUTER: &str = "/deployments/0/spec/template/spec/containers/0/args";
const RUNNER: &str = "/deployments/1/spec/template/spec/containers/0/args";
const CALLER: &str = "/deployments/2/spec/template/spec/containers/0/args";

fn data<T: DeserializeOwned>(name: &str) -> T {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/checks/tests");
    serde_saphyr::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

fn objects() -> Value {
    data("objects.yaml")
}

fn router(pod: &str, runners: &[&str]) -> Asked<Status> {
    let mut status: Value = data("status.yaml");
    let shard = status["shards"][0].take();
    let shards = runners.iter().map(|address| {
        let mut shard = shard.clone();
        shard["address"] = json!(address);
        shard
    });
    status["shards"] = shards.collect();
    let page = serde_json::from_value(status).unwrap();
    let answer = Answer { page, metrics: "porch_fn_router_ring_hash 7\n".to_owned() };
    Asked { pod: pod.to_owned(), ips: Vec::new(), ready: true, answer: Ok(answer) }
}

fn runner(pod: &str, ip: &str) -> Asked<bool> {
    let metrics = "porch_fn_runner_ring_hash 7\n\
                   porch_fn_runner_exec_config_hash 5\n\
                   porch_fn_runner_listed 1\n\
                   porch_fn_runner_config_valid{source=\"pod-cache-config\"} 1\n\
                   porch_fn_runner_function_config_problems 0\n";
    let answer = Answer { page: true, metrics: metrics.to_owned() };
    Asked { pod: pod.to_owned(), ips: vec![ip.parse().unwrap()], ready: true, answer: Ok(answer) }
}

fn facts_of(objects: &Value) -> Facts {
    let deployments: Vec<Deployment> = serde_json::from_value(objects["deployments"].clone()).unwrap();
    let services: Vec<Service> = serde_json::from_value(objects["services"].clone()).unwrap();
    let named = |service: Service| (service.name_any(), service.spec.unwrap_or_default());
    let addresses = ["10.0.0.1:9445", "10.0.0.2:9445"];
    Facts {
        namespace: "porch-system".to_owned(),
        installed: installation(&deployments),
        services: services.into_iter().map(named).collect(),
        routers: vec![router("router-a", &addresses), router("router-b", &addresses)],
        runners: vec![runner("runner-a", "10.0.0.1"), runner("runner-b", "10.0.0.2")],
        functions: "porch-fn-system".to_owned(),
        function_pods: Ok(Vec::new()),
        servers: Vec::new(),
        rights: Ok(Vec::new()),
        template: TemplateSource::BuiltIn,
    }
}

fn facts() -> Facts {
    facts_of(&objects())
}

/// Returns the findings that are not `ok`.
fn faults(facts: &Facts) -> Vec<(Level, &'static str, String)> {
    let faults = all(facts).into_iter().filter(|finding| finding.level != Level::Ok);
    let faults = faults.map(|finding| {
        let has_no_fix = finding.text.contains("were not queried");
        assert_eq!(finding.fix.is_empty(), has_no_fix, "each fault has a fix: {finding:?}");
        (finding.level, finding.check, finding.text)
    });
    faults.collect()
}

/// Returns the facts after changes to the objects of the installation.
fn changed(changes: &BTreeMap<String, Value>) -> Facts {
    let mut objects = objects();
    for (pointer, value) in changes {
        *objects.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.clone();
    }
    facts_of(&objects)
}

/// Expects one fault, whose text contains `part`.
#[track_caller]
fn expect(facts: &Facts, level: Level, check: &str, part: &str) {
    let found = faults(facts);
    let [(of_level, of_check, text)] = found.as_slice() else { panic!("{check} {part}: {found:?}") };
    assert!((*of_level, *of_check) == (level, check) && text.contains(part), "{check} {part}: {found:?}");
}

#[test]
fn each_fault_of_objects_and_flags_is_reported() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Case {
        router: Option<Vec<String>>,
        runner: Option<Vec<String>>,
        porch: Option<Vec<String>>,
        #[serde(default)]
        changes: BTreeMap<String, Value>,
        #[serde(default)]
        faults: Vec<(Level, String, String)>,
    }
    for mut case in data::<Vec<Case>>("faults.yaml") {
        if let Some(more) = &case.router {
            let usual = objects().pointer(ROUTER).unwrap().clone();
            let usual: Vec<String> = serde_json::from_value(usual).unwrap();
            case.changes.insert(ROUTER.to_owned(), json!([usual.as_slice(), more].concat()));
        }
        for (pointer, flags) in [(RUNNER, &case.runner), (CALLER, &case.porch)] {
            case.changes.extend(flags.as_ref().map(|flags| (pointer.to_owned(), json!(flags))));
        }
        let found = faults(&changed(&case.changes));
        let is_expected =
            |((level, check, text), expected): (&(Level, &str, String), &(Level, String, String))| {
                (*level, *check) == (expected.0, expected.1.as_str()) && text.contains(&expected.2)
            };
        let are_all = found.iter().zip(&case.faults).all(is_expected);
        assert!(are_all && found.len() == case.faults.len(), "{case:?}: {found:?}");
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
            "1 cannot start: no node has room for them: 0/1 nodes",
        ]
    );
}

#[test]
fn starts_that_failed_are_reported_although_their_pods_are_gone() {
    let mut facts = facts();
    for router in &mut facts.routers {
        let page = &mut router.answer.as_mut().unwrap().page;
        let start_error = Some(StartError { at_ms: 1, text: "pod f-0: image not found".to_owned() });
        let mut image = ImageStatus { start_error, ..ImageStatus::default() };
        image.info.image = "example.com/f:v1".to_owned();
        page.images = vec![image, ImageStatus::default()];
    }
    let expected = "example.com/f:v1 does not start: pod f-0: image not found";
    expect(&facts, Level::Problem, "function pods", expected);
}

#[test]
fn a_rollout_that_has_not_ended_is_reported_although_the_old_pods_are_ready() {
    let mut facts = facts();
    let router = facts.installed.router.as_mut().unwrap();
    router.workload.pods = router.workload.replicas + 1;
    expect(&facts, Level::Warning, "routers", "2 of 2 ready, but a rollout has not ended: there are 3 pods");
}

#[test]
fn templates_and_leftovers_are_checked() {
    let config_map = |checked| TemplateSource::ConfigMap("templates".to_owned(), checked);
    for (level, template, part) in [
        (Level::Problem, config_map(Err("no container".to_owned())), "no container"),
        (Level::Warning, config_map(Ok(vec!["odd".to_owned()])), "ConfigMap templates: odd"),
        (Level::Unknown, TemplateSource::Unknown("forbidden".to_owned()), "forbidden"),
    ] {
        expect(&Facts { template, ..facts() }, level, "pod template", part);
    }
    assert_eq!(faults(&Facts { template: TemplateSource::Object, ..facts() }), []);
    let left: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": "a", "labels": {"fn.kpt.dev/image": "a"}, "annotations": {"fn.kpt.dev/template-version": "1"},
        },
        "spec": {"containers": [{"name": "function"}]},
    }))
    .unwrap();
    let facts = Facts { function_pods: Ok(vec![left]), ..facts() };
    expect(&facts, Level::Info, "leftovers", "1 pods of Porch's evaluators in porch-fn-system");
}

/// Runners with these answers: `true` for ours, `false` for Porch's own, `None` for no answer.
fn answering(answers: &[Option<bool>]) -> Vec<Asked<bool>> {
    let asked = |(index, answer): (usize, &Option<bool>)| Asked {
        answer: answer.map(|page| Answer { page, metrics: String::new() }).ok_or("forbidden".to_owned()),
        ..runner(&format!("runner-{index}"), "10.0.0.1")
    };
    answers.iter().enumerate().map(asked).collect()
}

/// An installation without routers. The pods of its runner give these answers (see `answering`).
pub(in crate::doctor) fn single_runner(answers: &[Option<bool>]) -> Facts {
    let mut objects = objects();
    let mut deployment = objects["deployments"][1].clone();
    deployment["metadata"]["name"] = json!("function-runner");
    deployment["spec"]["replicas"] = json!(1);
    deployment["status"]["readyReplicas"] = json!(1);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["command"] = json!(["/home/nonroot/server"]);
    container["args"] = json!(["--pod-namespace=porch-fn-system"]);
    objects["deployments"] = json!([deployment, objects["deployments"][2]]);
    objects["services"][0]["spec"]["selector"] = json!({"app.kubernetes.io/name": "function-runner-shards"});
    Facts { routers: Vec::new(), runners: answering(answers), ..facts_of(&objects) }
}

#[test]
fn a_runner_alone_has_no_faults() {
    let mut facts = single_runner(&[Some(true)]);
    let answer = facts.runners[0].answer.as_mut().unwrap();
    answer.metrics =
        "porch_fn_runner_peers 0\nporch_fn_runner_listed 0\nporch_fn_runner_ring_hash 0\n".to_owned();
    assert_eq!(faults(&facts), []);
    let findings = all(&Facts { services: BTreeMap::new(), ..facts });
    let missing = findings.iter().find(|finding| finding.level != Level::Ok).unwrap();
    assert_eq!(missing.fix, "kubectl apply -k deploy/single-runner");
}

#[test]
fn readiness_is_checked_for_porchs_own_runner_too() {
    for (replicas, expected) in [(1, "0 of 1 ready"), (0, "Deployment function-runner is scaled to 0")] {
        let mut facts = single_runner(&[]);
        let runner = facts.installed.runner.as_mut().unwrap();
        (runner.workload.ready, runner.workload.replicas) = (0, replicas);
        let found = faults(&facts);
        assert_eq!((found[0].0, found[0].1), (Level::Unknown, "programs"));
        assert_eq!(found[1..], [(Level::Problem, "runners", expected.to_owned())]);
    }
}

#[test]
fn the_answers_of_the_pods_decide_whether_the_runner_is_porchs_own() {
    let beyond = |answer| [&[answer; MAX_ASKED][..], &[None]].concat();
    for (answers, expected, check) in [
        (beyond(Some(true)), Some(false), None),
        (beyond(Some(false)), Some(true), Some(Level::Warning)),
        (vec![None, Some(false)], Some(true), Some(Level::Warning)),
        (vec![Some(true), None], None, Some(Level::Unknown)),
        (vec![], None, Some(Level::Unknown)),
    ] {
        let facts = single_runner(&answers);
        assert_eq!(facts.is_original(), expected, "{answers:?}");
        let found = faults(&facts);
        let programs = found.iter().find(|fault| fault.1 == "programs");
        assert_eq!(programs.map(|fault| fault.0), check, "{answers:?}");
    }
    let mut facts = facts();
    facts.runners.extend(answering(&[Some(true); MAX_ASKED]));
    let found = faults(&facts).into_iter().filter(|fault| fault.1 == "runners");
    let text = "2 of 32 pods were not queried: the limit is 30".to_owned();
    assert_eq!(found.collect::<Vec<_>>(), [(Level::Unknown, "runners", text)]);
}
