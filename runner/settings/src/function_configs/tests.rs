//! Which of several FunctionConfigs wins for an image, and what the status of the others reports.

use serde_json::{Value, json};

use super::*;
use crate::source::Source;

const PREFIX: &str = "ghcr.io/x";

/// An object for image `f`, created `sec` seconds after 1970, with these fields in its spec.
fn read(name: &str, sec: i64, spec: &Value, semantics: TagSemantics) -> FunctionConfig {
    let mut whole = json!({"image": "f"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let created = Timestamp::from_second(sec).unwrap().to_string();
    let object = json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": whole});
    FunctionConfig::parse(&object, PREFIX, semantics).unwrap()
}

fn config(name: &str, sec: i64, spec: &Value) -> FunctionConfig {
    read(name, sec, spec, TagSemantics::Constraint)
}

fn pods(name: &str, sec: i64, tags: &[&str]) -> FunctionConfig {
    config(name, sec, &json!({"podExecutor": {"tags": tags}}))
}

fn exact(name: &str, sec: i64, tags: &[&str]) -> FunctionConfig {
    read(name, sec, &json!({"podExecutor": {"tags": tags}}), TagSemantics::Exact)
}

fn binary(name: &str, sec: i64, tags: &[&str]) -> FunctionConfig {
    config(name, sec, &json!({"binaryExecutor": {"tags": tags, "path": name}}))
}

fn new(configs: Vec<FunctionConfig>) -> FunctionConfigs {
    FunctionConfigs::new(configs, Setting::new(TagSemantics::Constraint, Source::Schema), None)
}

fn image(text: &str) -> Image {
    Image::parse(text, PREFIX).unwrap()
}

fn names(configs: &FunctionConfigs, text: &str) -> Vec<String> {
    configs.pod(&image(text)).into_iter().map(|config| config.name.clone()).collect()
}

fn binaries(configs: &FunctionConfigs, text: &str, field: Option<&str>) -> Vec<String> {
    let found = configs.binary(&image(text), field);
    found.into_iter().map(|(config, _)| config.name.clone()).collect()
}

fn digest() -> String {
    format!("f@sha256:{}", "0".repeat(64))
}

#[test]
fn a_foreign_image_of_the_same_name_inherits_nothing() {
    let spec = json!({"prefixes": ["", "quay.io/x"], "podExecutor": {"tags": ["*"]},
        "binaryExecutor": {"tags": ["v1"], "path": "f"}});
    let configs = new(vec![config("a", 0, &spec)]);
    for (image, count) in [
        ("f:v1", 1),
        ("ghcr.io/x/f:v1", 1),
        ("quay.io/x/f:v1", 1),
        ("evil.io/f:v1", 0),
        ("evil.io/x/f:v1", 0),
        ("x/f:v1", 0),
        ("ghcr.io/f:v1", 0),
        ("ghcr.io:443/x/f:v1", 0),
    ] {
        assert_eq!(
            (names(&configs, image).len(), binaries(&configs, image, None).len()),
            (count, count),
            "{image}"
        );
    }
}

/// Each case has objects, an image, the objects that win for it, and one object's problem.
#[test]
fn the_named_tag_wins_then_the_older_object_then_the_name() {
    let mut not_created = pods("a", 1, &["*"]);
    not_created.created = None;
    let digest = digest();
    let all_and_one = || vec![pods("all", 1, &["*"]), pods("one", 2, &["v1.0.0"])];
    let versions =
        vec![pods("a", 2, &["v0.2"]), pods("b", 1, &["v0.2.3", "v9.0.0"]), pods("c", 3, &["v0.3"])];
    let by_name = vec![pods("b", 1, &["*"]), pods("a", 1, &["*"])];
    for (objects, of, winners, name, problem) in [
        (all_and_one(), "f:v1.0.0", &["one", "all"][..], "all", None),
        (all_and_one(), &digest, &["all"], "one", None),
        (versions, "f:v0.2.3", &["b", "a"], "a", Some("tag v0.2.3: FunctionConfig b wins, it is older")),
        (by_name, "f", &["a", "b"], "b", Some("with any tag: FunctionConfig a wins, its name sorts first")),
        (
            vec![not_created, pods("b", 1, &["*"])],
            "f",
            &["b", "a"],
            "a",
            Some("with any tag: FunctionConfig b wins, it is older"),
        ),
        (
            vec![exact("b", 2, &["v1.0.0"]), exact("a", 1, &["~0.2"])],
            "f:odd",
            &["a", "b"],
            "b",
            Some("with any tag: FunctionConfig a wins, it is older"),
        ),
        // An object without tags matches no image.
        (vec![pods("a", 1, &[]), pods("c", 2, &["*"])], "f:v1", &["c"], "a", None),
    ] {
        let configs = new(objects);
        assert_eq!(names(&configs, of), winners);
        let problem = problem.map(|problem| format!("podExecutor: image ghcr.io/x/f {problem}"));
        assert_eq!(configs.problem(name), problem.as_deref());
        assert_eq!(configs.problem(winners[0]), None);
    }
}

#[test]
fn executors_are_compared_separately() {
    let both =
        json!({"podExecutor": {"tags": ["v1.0.0"]}, "binaryExecutor": {"tags": ["v2.0.0"], "path": "x"}});
    let configs = new(vec![config("both", 1, &both), pods("p", 2, &["v2.0.0"]), binary("e", 3, &["v2.0.0"])]);
    assert_eq!((names(&configs, "f:v2.0.0"), configs.problem("p")), (vec!["p".to_owned()], None));
    assert_eq!(binaries(&configs, "f:v2.0.0", None), ["both", "e"]);
    assert_eq!(
        configs.problem("e"),
        Some("binaryExecutor: image ghcr.io/x/f tag v2.0.0: FunctionConfig both wins, it is older")
    );
}

#[test]
fn the_highest_listed_version_answers_a_constraint() {
    let configs = new(vec![
        binary("old", 1, &["v0.1.0", "v0.3.0"]),
        binary("new", 2, &["v0.2.0", "v0.2.5"]),
        binary("range", 3, &["~0.2"]),
        binary("all", 0, &["*"]),
    ]);
    let digest = digest();
    for (of, field, expected) in [
        ("f:v9", Some("<0.3"), &["new", "old", "all"][..]),
        ("f:v9", Some(">=0.1"), &["old", "new", "all"]),
        // The object `range` lists the constraint `~0.2` itself.
        ("f:v9", Some("~0.2"), &["range", "new", "all"]),
        ("f:v9", Some("v0.2.7"), &["range", "all"]),
        ("f:v9", Some(">=1"), &["all"]),
        ("f:v0.2.5", None, &["new", "range", "all"]),
        (&digest, Some(">=0.1"), &[]),
        (&digest, None, &[]),
    ] {
        assert_eq!(binaries(&configs, of, field), expected, "{of} {field:?}");
    }
}

#[test]
fn a_part_without_effect_is_a_problem() {
    let replicas = FunctionConfig { min_replicas: Some(1), ..binary("a", 1, &["v1"]) };
    let impossible = json!({"binaryExecutor": {"tags": ["v0.2.1", "~0.2"], "path": "f"}});
    let impossible = read("a", 1, &impossible, TagSemantics::Exact);
    for (object, expected) in [
        (replicas, "annotation fn.kpt.dev/min-replicas has no effect without spec.podExecutor: add that"),
        (
            impossible,
            "spec.binaryExecutor.tags[1]: no image has the tag \"~0.2\": list tags, or see the runner's \
             --functionconfig-tags for constraints",
        ),
    ] {
        let configs = new(vec![object]);
        assert_eq!(configs.problem("a"), Some(expected));
        assert_eq!(configs.iter().count(), 1, "the object is used");
    }
    // If there are several problems, the status reports the first.
    let spec = json!({"prefixes": ["a.io", "b.io"], "podExecutor": {"tags": ["v1"]}});
    let configs = new(vec![config("old", 1, &spec), config("new", 2, &spec)]);
    let expected = "podExecutor: image a.io/f tag v1: FunctionConfig old wins, it is older";
    assert_eq!(configs.problem("new"), Some(expected));
}

#[test]
fn there_are_limits() {
    let many = (0..=100_i64).map(|sec| pods(&format!("c{sec}"), sec, &[&format!("v{sec}")]));
    let configs = new(many.collect());
    assert_eq!((names(&configs, "f:v99"), names(&configs, "f:v100")), (vec!["c99".to_owned()], vec![]));
    let expected = "image ghcr.io/x/f: this FunctionConfig is not used, because 100 other FunctionConfigs for the image precede it";
    assert_eq!(configs.problem("c100"), Some(expected));

    let one = |sec: i64| {
        config(&format!("c{sec}"), sec, &json!({"image": format!("f{sec}"), "podExecutor": {"tags": ["*"]}}))
    };
    let configs = new((0..=10_000_i64).map(one).collect());
    assert_eq!(configs.iter().count(), MAX_FUNCTION_CONFIGS);
    assert_eq!((names(&configs, "f9999"), names(&configs, "f10000")), (vec!["c9999".to_owned()], vec![]));
    assert_eq!(configs.problem("c10000"), Some("it is not used: 10000 other FunctionConfigs precede it"));
}
