//! Porch's own function runner beside ours or in their place, and of many pods those that are not asked.

use super::super::super::facts::MAX_ASKED;
use super::*;

/// A Deployment of Porch's own function runner.
fn original(name: &str, replicas: i32) -> Value {
    let command = ["/home/nonroot/server", "--pod-namespace=porch-fn-system"];
    let container =
        json!({"name": "function-runner", "image": "x/porch-function-runner:v1", "command": command});
    let mut original = objects()["deployments"][1].clone();
    original["metadata"]["name"] = json!(name);
    original["spec"]["replicas"] = json!(replicas);
    original["status"] = json!({});
    original["spec"]["template"]["spec"]["containers"] = json!([container]);
    original["spec"]["template"]["metadata"]["labels"] = json!({"app": "function-runner"});
    original
}

#[test]
fn whosever_it_is_it_has_to_be_ready() {
    for (there, expected) in [(1, "0 of 1 ready"), (0, "Deployment function-runner is scaled to 0")] {
        let mut facts = alone(&[]);
        let runner = facts.installed.runner.as_mut().unwrap();
        (runner.workload.ready, runner.workload.replicas) = (0, there);
        let found = faults(&facts);
        assert_eq!((found[0].0, found[0].1), (Level::Unknown, "programs"));
        assert_eq!(found[1..], [(Level::Problem, "runners", expected.to_owned())]);
    }
}

#[test]
fn it_does_not_stand_in_for_runners_that_are_missing() {
    let mut objects = objects();
    objects["deployments"][1] = original("function-runner", 0);
    let facts = Facts { runners: Vec::new(), routers: Vec::new(), ..facts_of(&objects) };
    expect(&facts, Level::Problem, "runners", "Deployment function-router has no runners beside it");
}

#[test]
fn each_that_still_runs_is_named() {
    let mut objects = objects();
    for (name, replicas) in [("function-runner", 0), ("old", 2), ("older", 1)] {
        objects["deployments"].as_array_mut().unwrap().push(original(name, replicas));
    }
    let texts: Vec<_> = faults(&facts_of(&objects)).into_iter().map(|fault| fault.2).collect();
    let still_runs = "Porch's own function runner still runs: Deployment";
    assert_eq!(texts, [format!("{still_runs} old, 2 replicas"), format!("{still_runs} older, 1 replicas")]);
}

#[test]
fn pods_that_were_asked_decide_whether_it_is_the_original() {
    let beyond = |answer| [&[answer; MAX_ASKED][..], &[None]].concat();
    for (answers, expected, check) in [
        (beyond(Some(true)), Some(false), None),
        (beyond(Some(false)), Some(true), Some(Level::Warning)),
        (vec![None, Some(false)], Some(true), Some(Level::Warning)),
        (vec![Some(true), None], None, Some(Level::Unknown)),
        (vec![], None, Some(Level::Unknown)),
    ] {
        let facts = alone(&answers);
        assert_eq!(facts.is_original(), expected, "{answers:?}");
        let found = faults(&facts);
        let programs = found.iter().find(|fault| fault.1 == "programs");
        assert_eq!(programs.map(|fault| fault.0), check, "{answers:?}");
    }
    let mut facts = facts();
    facts.runners.extend(answering(&[Some(true); MAX_ASKED]));
    let found = faults(&facts).into_iter().filter(|fault| fault.1 == "runners");
    let text = "2 of 32 pods were not asked how they are: only the first 30 by name are".to_owned();
    assert_eq!(found.collect::<Vec<_>>(), [(Level::Unknown, "runners", text)]);
}
