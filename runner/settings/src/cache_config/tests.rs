//! Pod cache configurations in both forms, and where broken ones are told to be broken.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use super::*;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    CacheConfig::parse(text, PREFIX).map(|config| config.entries)
}

#[test]
fn both_forms_are_read() {
    let list = "- name: set-namespace:v0.4.1\n  timeToLive: 1h\n  maxWaitlistLength: 3\n  \
                maxParallelPodsPerFunction: 4\n- name: x/y:1\n";
    let entries = parse(list).unwrap();
    assert_eq!(entries[0].name, "set-namespace:v0.4.1");
    assert_eq!(entries[0].image.as_str(), "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1");
    let expected =
        Limits { ttl: Some(Duration::from_hours(1)), max_pods: Some(4), min_pods: None, waitlist: Some(3) };
    assert_eq!(entries[0].limits, expected);
    assert_eq!(entries[1].limits, Limits::default(), "unset means as for all");

    let map = "set-namespace:v0.4.1: 10m\napply-setters:v0.2: 90s\nx:v1: 0s\n";
    let entries = parse(map).unwrap();
    let ttls: Vec<_> = entries.iter().map(|entry| entry.limits.ttl.map(|ttl| ttl.as_secs())).collect();
    assert_eq!(ttls, [Some(90), Some(600), None]);
    assert!(entries.iter().all(|entry| entry.resources.is_none()));
    assert!(parse("").unwrap().is_empty());
}

#[test]
fn replicas_are_read_and_agree() {
    let one = |keys: &str| parse(&format!("- {{name: a:v1, {keys}}}")).map(|mut entries| entries.remove(0));
    let limits = |keys: &str| one(keys).map(|entry| (entry.limits.min_pods, entry.limits.max_pods)).unwrap();
    assert_eq!(limits("minReplicas: 2, maxReplicas: 3"), (Some(2), Some(3)));
    assert_eq!(limits("minReplicas: 0, maxReplicas: 0"), (Some(0), None));
    assert_eq!(limits("maxReplicas: 0, maxParallelPodsPerFunction: 5"), (None, Some(5)));
    assert_eq!(limits("maxReplicas: 3, maxParallelPodsPerFunction: 5"), (None, Some(3)));
    assert_eq!(
        one("minReplicas: 4, maxReplicas: 3").unwrap_err(),
        "line 1, column 10: entry \"a:v1\": minReplicas 4 is more than maxReplicas 3: write at most that"
    );
    assert_eq!(
        one("minReplicas: 4, maxParallelPodsPerFunction: 3").unwrap_err(),
        "line 1, column 10: entry \"a:v1\": minReplicas 4 is more than maxParallelPodsPerFunction 3: write at most that"
    );
    assert!(one("minReplicas: -1").unwrap_err().contains("line 1"));
}

#[test]
fn resources_are_read() {
    let list = "- name: a:v1\n  resources:\n    requests: {cpu: 10m, memory: 64Mi}\n    limits: {cpu: 1, memory: 0.5Gi}\n\
                - name: b:v1\n  resources: {}\n- name: c:v1\n- name: d:v1\n  resources: null\n\
                - name: e:v1\n  resources: {limits: {cpu: 1.5}}\n";
    let read: Vec<_> = parse(list).unwrap().into_iter().map(|entry| entry.resources).collect();
    let quantities = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, Quantity>> {
        Some(pairs.iter().map(|&(name, text)| (name.to_owned(), Quantity(text.to_owned()))).collect())
    };
    let a = ResourceRequirements {
        requests: quantities(&[("cpu", "10m"), ("memory", "64Mi")]),
        limits: quantities(&[("cpu", "1"), ("memory", "0.5Gi")]),
        claims: None,
    };
    let e = ResourceRequirements { limits: quantities(&[("cpu", "1.5")]), ..ResourceRequirements::default() };
    assert_eq!(read, [Some(a), None, None, None, Some(e)]);
}

#[test]
fn broken_entries_are_named_with_their_place() {
    let error = parse("- name: b:v1\n- {name: a:v1, timeToLive: soon}").unwrap_err();
    assert_eq!(
        error,
        "line 2, column 10: entry \"a:v1\": timeToLive \"soon\": \"soon\" is not a duration; use forms such as 30m, \
         1h30m, 500ms"
    );
    let error = parse("a:v1: 1m\nb:v1: soon\n").unwrap_err();
    assert!(error.starts_with("line 2, column 7: entry \"b:v1\": timeToLive \"soon\""), "{error}");
    let error = parse("- {name: 'UPPER/Case'}").unwrap_err();
    assert!(error.starts_with("line 1, column 10: entry \"UPPER/Case\": image reference"), "{error}");
    assert!(parse("3").is_err());
    let error = parse("- name: a:v1\n- name: b:v1\n  maxWaitlistLength: many\n").unwrap_err();
    assert!(error.contains("line 3"), "{error}");
    let error = parse("- {name: a:v1, resources: {limits: {memory: 64MB}}}").unwrap_err();
    let expected = "line 1, column 10: entry \"a:v1\": resources: limits: memory: \"64MB\" is no quantity; write a \
                    number such as 100m, 0.5, 64Mi or 1e3";
    assert_eq!(error, expected);
    for wrong in
        ["{requests: {cpu: true}}", "{requests: 3}", "[]", "{requests: {cpu: -1}}", "{requests: {cpu: .nan}}"]
    {
        assert!(parse(&format!("- {{name: a:v1, resources: {wrong}}}")).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn never_panics_and_always_says_where(
        text in prop_oneof![
            "\\PC{0,60}(\n\\PC{0,30}){0,4}",
            "(- (name|timeToLive|minReplicas|resources): (f|\\[|\\{|3|-1|30m|f:v1)?\n(  (maxReplicas|limits): .{0,5}\n)?){1,4}",
        ],
    ) {
        if let Err(error) = parse(&text) {
            prop_assert!(error.contains("line ") && !error.contains('\n'), "{:?}: {}", text, error);
        }
    }
}
