//! Porch's own function runner beside ours or in their place, and of many pods those that are not asked.

use super::super::super::facts::MAX_ASKED;
use super::*;

/// A Deployment of Porch's own function runner.
fn original(replicas: i32) -> Value {
    let command = json!(["/home/nonroot/server", "--pod-namespace=porch-fn-system"]);
    let mut original = objects()["deployments"][1].clone();
    original["metadata"]["name"] = json!("function-runner");
    original["spec"]["replicas"] = json!(replicas);
    original["status"] = json!({});
    original["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "function-runner", "image": "x/porch-function-runner:v1", "command": command}]);
    original["spec"]["template"]["metadata"]["labels"] = json!({"app": "function-runner"});
    original
}

#[test]
fn whosever_it_is_it_has_to_be_ready() {
    for (there, expected) in [(1, "0 of 1 ready"), (0, "Deployment function-runner is scaled to 0")] {
        let mut facts = alone();
        facts.runners.clear();
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
    objects["deployments"][1] = original(0);
    let mut facts = facts_of(&objects);
    facts.runners.clear();
    facts.routers.clear();
    expect(&facts, Level::Problem, "runners", "Deployment function-router has no runners beside it");
}

#[test]
fn each_that_still_runs_is_named() {
    let mut objects = objects();
    for (name, replicas) in [("function-runner", 0), ("old", 2), ("older", 1)] {
        let mut original = original(replicas);
        original["metadata"]["name"] = json!(name);
        objects["deployments"].as_array_mut().unwrap().push(original);
    }
    let texts: Vec<_> = faults(&facts_of(&objects)).into_iter().map(|fault| fault.2).collect();
    assert_eq!(
        texts,
        [
            "Porch's own function runner still runs: Deployment old, 2 replicas",
            "Porch's own function runner still runs: Deployment older, 1 replicas",
        ]
    );
}

#[test]
fn pods_beyond_those_that_are_asked_are_no_failure() {
    let mut facts = facts();
    facts.runners[1].answer = Err(Silence::NotAsked);
    let text = format!("1 of 2 pods were not asked how they are: only the first {MAX_ASKED} by name are");
    expect(&facts, Level::Unknown, "runners", &text);
    assert!(all(&facts).iter().any(|finding| finding.check == "discovery"), "they still count as there");
}

#[test]
fn pods_that_were_asked_decide_whether_it_is_the_original() {
    let failed = || Err(Silence::Failed("forbidden".to_owned()));
    let not_asked = || Err(Silence::NotAsked);
    for (answers, expected, check) in [
        (vec![Ok(true), Ok(true), not_asked()], Original::No, None),
        (vec![Ok(true), Ok(false), not_asked()], Original::Yes, Some(Level::Warning)),
        (vec![failed(), Ok(false)], Original::Yes, Some(Level::Warning)),
        (vec![Ok(true), failed(), not_asked()], Original::Unknown, Some(Level::Unknown)),
        (vec![not_asked()], Original::Unknown, Some(Level::Unknown)),
        (vec![], Original::Unknown, Some(Level::Unknown)),
    ] {
        let mut facts = alone();
        let answered = |answer: &Result<bool, Silence>| Asked {
            answer: answer.clone().map(|ours| Answer { page: IsOurs(ours), metrics: String::new() }),
            ..runner("runner", "10.0.0.1")
        };
        facts.runners = answers.iter().map(answered).collect();
        assert_eq!(facts.original(), expected, "{answers:?}");
        let programs = faults(&facts).into_iter().find(|fault| fault.1 == "programs");
        assert_eq!(programs.map(|fault| fault.0), check, "{answers:?}");
    }
}
