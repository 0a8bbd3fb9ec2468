//! Objects that are right but for one field, which is anything.

use proptest::prelude::*;
use serde_json::json;

use super::tests::parse;
use super::*;

const PLACES: [&str; 12] = [
    "/spec",
    "/spec/image",
    "/spec/prefixes",
    "/spec/prefixes/0",
    "/spec/podExecutor",
    "/spec/podExecutor/tags",
    "/spec/podExecutor/tags/0",
    "/spec/podExecutor/timeToLive",
    "/spec/podExecutor/templateOverrides/container",
    "/spec/podExecutor/templateOverrides/container/env/0",
    "/spec/binaryExecutor/path",
    "/metadata/annotations",
];

/// JSON of any shape, with some of this object's keys.
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
        "tags",
        "path",
        "env",
        "resources",
        "name",
        "valueFrom",
        "other",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_wrong_object_names_a_field(place in proptest::sample::select(&PLACES[..]), anything in any_json()) {
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
        *object.pointer_mut(place).unwrap() = anything;
        match parse(&object) {
            Ok(config) => prop_assert!(!config.spec.repositories.is_empty()),
            Err(FunctionConfigError::Field { path, reason, .. }) => {
                prop_assert!(path.starts_with("spec") || path.starts_with("metadata"), "{}", path);
                prop_assert!(!reason.is_empty());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
