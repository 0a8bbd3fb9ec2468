//! Which of several FunctionConfigs holds for an image, and what the others are told.

use serde_json::{Value, json};

use super::*;

const PREFIX: &str = "ghcr.io/x";

/// An object for image `f` with this spec beside the image; `age` seconds after 1970.
fn config(name: &str, age: i64, spec: &Value) -> FunctionConfig {
    let mut whole = json!({"image": "f"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let created = Timestamp::from_second(age).unwrap().to_string();
    let object = json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": whole});
    FunctionConfig::parse(&object, PREFIX).unwrap()
}

fn pods(name: &str, age: i64, tags: &[&str]) -> FunctionConfig {
    config(name, age, &json!({"podExecutor": {"tags": tags}}))
}

fn binary(name: &str, age: i64, tags: &[&str]) -> FunctionConfig {
    config(name, age, &json!({"binaryExecutor": {"tags": tags, "path": name}}))
}

fn new(configs: Vec<FunctionConfig>) -> FunctionConfigs {
    FunctionConfigs::new(configs, None)
}

fn names(configs: &FunctionConfigs, image: &str) -> Vec<String> {
    configs.pod(&Image::parse(image, PREFIX).unwrap()).map(|(config, _)| config.name.clone()).collect()
}

fn binaries(configs: &FunctionConfigs, image: &str) -> Vec<String> {
    configs.binary(&Image::parse(image, PREFIX).unwrap()).map(|(config, _)| config.name.clone()).collect()
}

#[test]
fn a_foreign_image_of_the_same_name_inherits_nothing() {
    let prefixes = json!({"prefixes": ["", "quay.io/x"], "podExecutor": {}, "binaryExecutor": {"tags": ["v1"], "path": "f"}});
    let configs = new(vec![config("a", 0, &prefixes)]);
    for own in ["f:v1", "ghcr.io/x/f:v1", "quay.io/x/f:v1"] {
        assert_eq!(
            (names(&configs, own), binaries(&configs, own)),
            (vec!["a".to_owned()], vec!["a".to_owned()])
        );
    }
    for foreign in
        ["evil.io/f:v1", "evil.io/x/f:v1", "x/f:v1", "ghcr.io/x/y/f:v1", "ghcr.io/f:v1", "ghcr.io:443/x/f:v1"]
    {
        assert!(names(&configs, foreign).is_empty() && binaries(&configs, foreign).is_empty(), "{foreign}");
    }
}

#[test]
fn one_that_names_the_tag_wins_over_one_for_all() {
    let configs = new(vec![pods("general", 1, &[]), pods("specific", 2, &["v1.0.0"])]);
    assert_eq!(names(&configs, "f:v1.0.0"), ["specific", "general"]);
    assert_eq!(names(&configs, "f:v1.0.1"), ["general"]);
    let digest = format!("f@sha256:{}", "0".repeat(64));
    assert_eq!(names(&configs, &digest), ["general"]);
    assert_eq!((configs.problem("general"), configs.problem("specific")), (None, None), "it is meant");
}

#[test]
fn the_older_one_wins_and_the_other_is_told() {
    let configs =
        new(vec![pods("a", 2, &["v0.2"]), pods("b", 1, &["v0.2.3", "v9.0.0"]), pods("c", 3, &["v0.3"])]);
    assert_eq!(names(&configs, "f:v0.2.3"), ["b", "a"]);
    assert_eq!(names(&configs, "f:v0.2.4"), ["a"]);
    assert_eq!(
        configs.problem("a"),
        Some("podExecutor: image ghcr.io/x/f tag v0.2.3: FunctionConfig b counts, it is older")
    );
    assert_eq!((configs.problem("b"), configs.problem("c"), configs.problem("absent")), (None, None, None));
    assert_eq!(configs.iter().map(|config| &*config.name).collect::<Vec<_>>(), ["b", "a", "c"]);
}

#[test]
fn of_the_same_age_the_lesser_name_wins() {
    let configs = new(vec![pods("b", 1, &[]), pods("a", 1, &[])]);
    assert_eq!(names(&configs, "f"), ["a", "b"]);
    assert_eq!(
        configs.problem("b"),
        Some("podExecutor: image ghcr.io/x/f without tags: FunctionConfig a counts, its name comes first")
    );
    let mut unborn = pods("a", 1, &[]);
    unborn.created = None;
    assert_eq!(
        names(&new(vec![unborn, pods("b", 1, &[])]), "f"),
        ["b", "a"],
        "without a time it is the youngest"
    );
}

#[test]
fn executors_conflict_each_on_its_own() {
    let both =
        json!({"podExecutor": {"tags": ["v1.0.0"]}, "binaryExecutor": {"tags": ["v2.0.0"], "path": "x"}});
    let configs = new(vec![config("both", 1, &both), pods("p", 2, &["v2.0.0"]), binary("e", 3, &["v2.0.0"])]);
    assert_eq!(names(&configs, "f:v2.0.0"), ["p"]);
    assert_eq!(binaries(&configs, "f:v2.0.0"), ["both", "e"]);
    assert_eq!(configs.problem("p"), None);
    assert_eq!(
        configs.problem("e"),
        Some("binaryExecutor: image ghcr.io/x/f tag v2.0.0: FunctionConfig both counts, it is older")
    );
}

#[test]
fn an_image_by_digest_has_no_executable() {
    let configs = new(vec![binary("a", 1, &["v1", "latest"])]);
    assert_eq!(binaries(&configs, "f:v1"), ["a"]);
    assert!(binaries(&configs, &format!("f:v1@sha256:{}", "0".repeat(64))).is_empty());
}

#[test]
fn problems_are_told_once_per_repository_and_are_bounded() {
    let spec = json!({"prefixes": ["a.io", "b.io", "c.io", "d.io", "e.io"], "podExecutor": {"tags": ["v1"]}});
    let configs = new(vec![config("old", 1, &spec), config("older", 0, &spec), config("new", 2, &spec)]);
    assert_eq!(
        configs.problem("new"),
        Some(
            "podExecutor: image a.io/f tag v1: FunctionConfig older counts, it is older; podExecutor: image b.io/f tag \
             v1: FunctionConfig older counts, it is older; podExecutor: image c.io/f tag v1: FunctionConfig older \
             counts, it is older; and 2 more"
        )
    );
}

#[test]
fn annotations_without_pods_are_told() {
    let mut one = binary("a", 1, &["v1"]);
    one.min_replicas = Some(1);
    assert_eq!(
        new(vec![one]).problem("a"),
        Some("annotation fn.kpt.dev/min-replicas has no effect without spec.podExecutor: add that")
    );
}

#[test]
fn too_many_are_told() {
    let many = (0..=100_i64).map(|age| pods(&format!("c{age}"), age, &[&format!("t{age}")]));
    let configs = new(many.collect());
    let names_of = |age: usize| names(&configs, &format!("f:t{age}"));
    assert_eq!(names_of(MAX_PER_REPOSITORY - 1), ["c99"]);
    assert!(names_of(MAX_PER_REPOSITORY).is_empty());
    assert_eq!(
        configs.problem("c100"),
        Some(
            "podExecutor: image ghcr.io/x/f: this one does not count, since 100 FunctionConfigs for it come before"
        )
    );

    let one =
        |age: i64| config(&format!("c{age}"), age, &json!({"image": format!("f{age}"), "podExecutor": {}}));
    let configs = new((0..=10_000_i64).map(one).collect());
    assert_eq!(configs.iter().count(), MAX_FUNCTION_CONFIGS);
    assert_eq!(names(&configs, "f9999"), ["c9999"]);
    assert!(names(&configs, "f10000").is_empty());
    assert_eq!(configs.problem("c10000"), Some("10000 FunctionConfigs come before: this one does not count"));
}
