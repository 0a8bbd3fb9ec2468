use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use super::*;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

#[test]
fn both_forms_are_read() {
    let list = "- name: set-namespace:v0.4.1\n  timeToLive: 1h\n  maxWaitlistLength: 3\n  \
                maxParallelPodsPerFunction: 4\n- name: x/y:1\n";
    let entries = parse(list, PREFIX).unwrap();
    assert_eq!(entries[0].image.as_str(), "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1");
    let expected = Override { max_pods: 4, waitlist: 3, ttl: Duration::from_hours(1), ..Override::default() };
    assert_eq!(entries[0].limits, expected);
    assert_eq!(entries[1].limits, Override::default(), "unset means as for all");

    let map = "set-namespace:v0.4.1: 10m\napply-setters:v0.2: 90s\n";
    let entries = parse(map, PREFIX).unwrap();
    let ttls: Vec<_> = entries.iter().map(|entry| entry.limits.ttl.as_secs()).collect();
    assert_eq!(ttls, [90, 600]);
    assert!(entries.iter().all(|entry| entry.resources.is_none()));
    assert!(parse("", PREFIX).unwrap().is_empty());
}

#[test]
fn resources_are_read() {
    let list = "- name: a:v1\n  resources:\n    requests: {cpu: 10m, memory: 64Mi}\n    limits: {cpu: 1, memory: 0.5Gi}\n\
                - name: b:v1\n  resources: {}\n- name: c:v1\n- name: d:v1\n  resources: null\n\
                - name: e:v1\n  resources: {limits: {cpu: 1.5}}\n\
                - name: a:v1\n  resources: {limits: {cpu: 9}}\n- name: c:v1\n  resources: {limits: {cpu: 9}}\n";
    let entries = parse(list, PREFIX).unwrap();
    let table = resources(&entries);
    let key = |name| ImageKey::from(Image::parse(name, PREFIX).unwrap().as_str());
    let quantities = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, Quantity>> {
        Some(pairs.iter().map(|&(name, text)| (name.to_owned(), Quantity(text.to_owned()))).collect())
    };
    let a = ResourceRequirements {
        requests: quantities(&[("cpu", "10m"), ("memory", "64Mi")]),
        limits: quantities(&[("cpu", "1"), ("memory", "0.5Gi")]),
        claims: None,
    };
    let e = ResourceRequirements { limits: quantities(&[("cpu", "1.5")]), ..ResourceRequirements::default() };
    assert_eq!(table, HashMap::from([(key("a:v1"), a), (key("e:v1"), e)]));
}

#[test]
fn broken_entries_are_named() {
    let error = parse("- {name: a:v1, timeToLive: soon}", PREFIX).unwrap_err();
    assert!(error.contains("\"a:v1\"") && error.contains("soon"), "{error}");
    assert!(parse("- {name: 'UPPER/Case'}", PREFIX).unwrap_err().contains("UPPER/Case"));
    assert!(parse("3", PREFIX).is_err());
    let error = parse("- name: a:v1\n- name: b:v1\n  maxWaitlistLength: many\n", PREFIX).unwrap_err();
    assert!(error.contains("line 3"), "{error}");
    let error = parse("- {name: a:v1, resources: {limits: {memory: 64MB}}}", PREFIX).unwrap_err();
    let expected = "entry \"a:v1\": resources: limits: memory: \"64MB\" is no quantity; write a number such as 100m, \
                    0.5, 64Mi or 1e3";
    assert_eq!(error, expected);
    for wrong in
        ["{requests: {cpu: true}}", "{requests: 3}", "[]", "{requests: {cpu: -1}}", "{requests: {cpu: .nan}}"]
    {
        assert!(parse(&format!("- {{name: a:v1, resources: {wrong}}}"), PREFIX).is_err(), "{wrong}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let error = || read_config(&path, PREFIX).unwrap_err().to_string();
    assert!(error().ends_with("file: No such file or directory (os error 2)"), "{}", error());
    std::fs::write(&path, b"\xff").unwrap();
    assert!(error().contains("UTF-8"), "{}", error());
    let comment = "#".repeat(MAX_BYTES as usize);
    std::fs::write(&path, &comment).unwrap();
    assert!(read_config(&path, PREFIX).unwrap().entries.is_empty());
    std::fs::write(&path, comment + "#").unwrap();
    assert!(error().contains("too large"), "{}", error());
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,60}(\n\\PC{0,30}){0,4}") {
        let _ = parse(&text, PREFIX);
    }
}
