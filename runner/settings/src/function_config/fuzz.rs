//! Objects of any shape.

use proptest::prelude::*;
use serde_json::json;

use super::tests::{object, parse};
use super::*;

/// JSON of any shape, with this object's keys among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        "(v?[0-9]{1,2}(\\.[0-9x]){0,3}|f|quay\\.io|30m|>=1)".prop_map(Value::from),
    ];
    let key = proptest::sample::select(vec![
        "image",
        "prefixes",
        "tags",
        "podExecutor",
        "binaryExecutor",
        "goExecutor",
        "path",
        "timeToLive",
        "id",
        "maxParallelExecutions",
        "preferredMaxQueueLength",
        "templateOverrides",
        "container",
        "initContainer",
        "env",
        "envFrom",
        "resources",
        "limits",
        "name",
        "value",
        "valueFrom",
        "secretRef",
        "securityContext",
        "other",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// An object that is right but for one field, which is anything.
fn nearly_right() -> impl Strategy<Value = Value> {
    let places = vec![
        "/spec/image",
        "/spec/prefixes",
        "/spec/prefixes/0",
        "/spec/podExecutor",
        "/spec/podExecutor/tags",
        "/spec/podExecutor/tags/0",
        "/spec/podExecutor/timeToLive",
        "/spec/podExecutor/templateOverrides",
        "/spec/podExecutor/templateOverrides/container",
        "/spec/podExecutor/templateOverrides/container/env",
        "/spec/podExecutor/templateOverrides/container/env/0",
        "/spec/binaryExecutor",
        "/spec/binaryExecutor/tags",
        "/spec/binaryExecutor/path",
        "/metadata/annotations",
        "/spec",
    ];
    (proptest::sample::select(places), any_json()).prop_map(|(place, value)| {
        let mut object = json!({
            "metadata": {"name": "f", "annotations": {}},
            "spec": {
                "image": "f",
                "prefixes": [""],
                "podExecutor": {"tags": ["v1"], "timeToLive": "1m",
                    "templateOverrides": {"container": {"env": [{"name": "A"}]}}},
                "binaryExecutor": {"tags": ["v1"], "path": "f"},
            },
        });
        if let Some(field) = object.pointer_mut(place) {
            *field = value;
        }
        object
    })
}

proptest! {
    #[test]
    fn whatever_is_wrong_is_named(anything in prop_oneof![
        any_json(),
        any_json().prop_map(|spec| object(&spec)),
        nearly_right(),
    ]) {
        match parse(&anything) {
            Ok(config) => prop_assert!(!config.spec.repositories.is_empty()),
            Err(FunctionConfigError::NoName) => prop_assert!(anything.pointer("/metadata/name").is_none_or(|name| name == "" || !name.is_string())),
            Err(FunctionConfigError::Field { path, reason, .. }) => {
                prop_assert!(path.starts_with("spec") || path.starts_with("metadata"), "{}", path);
                prop_assert!(!reason.is_empty());
            }
        }
    }
}
