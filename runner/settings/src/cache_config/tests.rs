//! Pod cache configurations in both forms, and the positions in errors.

use std::time::Duration;

use serde_json::json;

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
    let expected = Limits {
        ttl: Some(Duration::from_hours(1)),
        max_pods: Some(4),
        waitlist: Some(3),
        ..Limits::default()
    };
    assert_eq!(entries[0].limits, expected);
    assert_eq!(entries[1].limits, Limits::default(), "a field that is not set keeps the flag's value");

    let entries = parse("set-namespace:v0.4.1: 10m\napply-setters:v0.2: 90s\nx:v1: 0s\n").unwrap();
    let ttls: Vec<_> = entries.iter().map(|entry| entry.limits.ttl.map(|ttl| ttl.as_secs())).collect();
    assert_eq!(ttls, [Some(90), Some(600), None]);
    assert!(parse("").unwrap().is_empty());
}

#[test]
fn replicas_are_read_and_checked() {
    let more = |key: &str| {
        Err(format!(
            "line 1, column 10: entry \"a:v1\": minReplicas 4 is more than {key} 3: write at most that"
        ))
    };
    for (keys, expected) in [
        ("minReplicas: 2, maxReplicas: 3", Ok((Some(2), Some(3)))),
        ("minReplicas: 0, maxReplicas: 0", Ok((Some(0), None))),
        ("maxReplicas: 0, maxParallelPodsPerFunction: 5", Ok((None, Some(5)))),
        ("maxReplicas: 3, maxParallelPodsPerFunction: 5", Ok((None, Some(3)))),
        ("minReplicas: 4, maxReplicas: 3", more("maxReplicas")),
        ("minReplicas: 4, maxParallelPodsPerFunction: 3", more("maxParallelPodsPerFunction")),
    ] {
        let read = parse(&format!("- {{name: a:v1, {keys}}}"));
        assert_eq!(read.map(|entries| (entries[0].limits.min_pods, entries[0].limits.max_pods)), expected);
    }
}

#[test]
fn resources_are_read() {
    let list = "- {name: a:v1, resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {cpu: 1, memory: 0.5Gi}}}\n\
                - {name: b:v1, resources: {}}\n- name: c:v1\n- {name: d:v1, resources: null}\n\
                - {name: e:v1, resources: {limits: {cpu: 1.5}}}\n";
    let read = parse(list).unwrap().into_iter().map(|entry| serde_json::to_value(entry.resources).unwrap());
    let a = json!({"limits": {"cpu": "1", "memory": "0.5Gi"}, "requests": {"cpu": "10m", "memory": "64Mi"}});
    let e = json!({"limits": {"cpu": "1.5"}});
    assert_eq!(read.collect::<Vec<_>>(), [a, Value::Null, Value::Null, Value::Null, e]);
}

#[test]
fn errors_name_the_entry_and_its_position() {
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
