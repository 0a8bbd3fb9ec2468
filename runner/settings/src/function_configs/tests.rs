//! Which of several FunctionConfigs holds for an image, and what the others are told.

use serde_json::{Value, json};

use super::*;
use crate::source::Source;

const PREFIX: &str = "ghcr.io/x";

/// An object for image `f` with this spec beside the image; `age` seconds after 1970.
fn config(name: &str, age: i64, spec: &Value) -> FunctionConfig {
    read(name, age, spec, TagSemantics::Constraint)
}

fn read(name: &str, age: i64, spec: &Value, semantics: TagSemantics) -> FunctionConfig {
    let mut whole = json!({"image": "f"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let created = Timestamp::from_second(age).unwrap().to_string();
    let object = json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": whole});
    FunctionConfig::parse(&object, PREFIX, semantics).unwrap()
}

fn exact(name: &str, age: i64, spec: &Value) -> FunctionConfig {
    read(name, age, spec, TagSemantics::Exact)
}

fn pods(name: &str, age: i64, tags: &[&str]) -> FunctionConfig {
    config(name, age, &json!({"podExecutor": {"tags": tags}}))
}

fn binary(name: &str, age: i64, tags: &[&str]) -> FunctionConfig {
    config(name, age, &json!({"binaryExecutor": {"tags": tags, "path": name}}))
}

fn new(configs: Vec<FunctionConfig>) -> FunctionConfigs {
    FunctionConfigs::new(configs, Setting::new(TagSemantics::Constraint, Source::Schema), None)
}

fn names(configs: &FunctionConfigs, image: &str) -> Vec<String> {
    configs.pod(&Image::parse(image, PREFIX).unwrap()).map(|(config, _)| config.name.clone()).collect()
}

fn binaries(configs: &FunctionConfigs, image: &str) -> Vec<String> {
    by_field(configs, image, None)
}

fn by_field(configs: &FunctionConfigs, image: &str, field: Option<&str>) -> Vec<String> {
    let found = configs.binary(&Image::parse(image, PREFIX).unwrap(), field);
    found.into_iter().map(|(config, _)| config.name.clone()).collect()
}

#[test]
fn a_foreign_image_of_the_same_name_inherits_nothing() {
    let prefixes = json!({"prefixes": ["", "quay.io/x"], "podExecutor": {"tags": ["*"]}, "binaryExecutor": {"tags": ["v1"], "path": "f"}});
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
    let configs = new(vec![pods("general", 1, &["*"]), pods("specific", 2, &["v1.0.0"])]);
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
    let configs = new(vec![pods("b", 1, &["*"]), pods("a", 1, &["*"])]);
    assert_eq!(names(&configs, "f"), ["a", "b"]);
    assert_eq!(
        configs.problem("b"),
        Some("podExecutor: image ghcr.io/x/f with any tag: FunctionConfig a counts, its name comes first")
    );
    let mut unborn = pods("a", 1, &["*"]);
    unborn.created = None;
    assert_eq!(
        names(&new(vec![unborn, pods("b", 1, &["*"])]), "f"),
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
fn exact_an_object_for_pods_is_for_every_tag() {
    let pods = |name, age, tags: &[&str]| exact(name, age, &json!({"podExecutor": {"tags": tags}}));
    let configs = new(vec![pods("b", 2, &["v1.0.0"]), pods("a", 1, &["~0.2"])]);
    let digest = format!("f@sha256:{}", "0".repeat(64));
    for image in ["f", "f:v1.0.0", "f:odd", &digest] {
        assert_eq!(names(&configs, image), ["a", "b"]);
    }
    assert_eq!(
        configs.problem("b"),
        Some("podExecutor: image ghcr.io/x/f with any tag: FunctionConfig a counts, it is older")
    );
}

#[test]
fn exact_a_tag_that_no_image_has_is_told() {
    let binary = json!({"binaryExecutor": {"tags": ["v0.2.1", "~0.2"], "path": "f"}});
    let configs = new(vec![exact("a", 1, &binary)]);
    assert_eq!(binaries(&configs, "f:v0.2.1"), ["a"], "it counts");
    assert_eq!(
        configs.problem("a"),
        Some(
            "spec.binaryExecutor.tags[1]: no image has the tag \"~0.2\": list tags, or see the runner's \
             --functionconfig-tags for constraints"
        )
    );
}

#[test]
fn a_list_without_tags_is_for_nothing() {
    let configs = new(vec![pods("a", 1, &[]), binary("b", 1, &[]), pods("c", 2, &["*"])]);
    assert_eq!((names(&configs, "f:v1"), binaries(&configs, "f:v1")), (vec!["c".to_owned()], vec![]));
    let without: Vec<_> = configs.without_tags(&Image::parse("f:v1", PREFIX).unwrap()).collect();
    assert_eq!(without.iter().map(|config| &*config.name).collect::<Vec<_>>(), ["a"]);
    assert_eq!(configs.problem("a"), None, "it is meant");
}

#[test]
fn the_highest_listed_version_answers_a_constraint() {
    let configs = new(vec![
        binary("old", 1, &["v0.1.0", "v0.3.0"]),
        binary("new", 2, &["v0.2.0", "v0.2.5"]),
        binary("range", 3, &["~0.2"]),
        binary("all", 0, &["*"]),
    ]);
    let found = |field| by_field(&configs, "f:v9", Some(field));
    assert_eq!(found("<0.3"), ["new", "old", "all"]);
    assert_eq!(found(">=0.1"), ["old", "new", "all"]);
    assert_eq!(found("~0.2"), ["range", "new", "all"], "the text is listed");
    assert_eq!(found("v0.2.7"), ["range", "all"]);
    assert_eq!(found(">=1"), ["all"]);
    assert_eq!(binaries(&configs, "f:v0.2.5"), ["new", "range", "all"], "of equals the older one");
    let digest = format!("f@sha256:{}", "0".repeat(64));
    assert!(by_field(&configs, &digest, Some(">=0.1")).is_empty());
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
    let many = (0..=100_i64).map(|age| pods(&format!("c{age}"), age, &[&format!("v{age}")]));
    let configs = new(many.collect());
    let names_of = |age: usize| names(&configs, &format!("f:v{age}"));
    assert_eq!(names_of(MAX_PER_REPOSITORY - 1), ["c99"]);
    assert!(names_of(MAX_PER_REPOSITORY).is_empty());
    assert_eq!(
        configs.problem("c100"),
        Some(
            "podExecutor: image ghcr.io/x/f: this one does not count, since 100 FunctionConfigs for it come before"
        )
    );

    let one = |age: i64| {
        config(&format!("c{age}"), age, &json!({"image": format!("f{age}"), "podExecutor": {"tags": ["*"]}}))
    };
    let configs = new((0..=10_000_i64).map(one).collect());
    assert_eq!(configs.iter().count(), MAX_FUNCTION_CONFIGS);
    assert_eq!(names(&configs, "f9999"), ["c9999"]);
    assert!(names(&configs, "f10000").is_empty());
    assert_eq!(configs.problem("c10000"), Some("10000 FunctionConfigs come before: this one does not count"));
}
