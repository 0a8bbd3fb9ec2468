//! Tests the fields that are read from a pod, and which pods are ignored. A runner needs these
//! fields to use the pods of other runners, and its own pods after a restart.

use k8s_openapi::api::core::v1;
use porch_fn_pool::Time;
use serde_json::{Value, json};

use super::*;

fn object() -> Value {
    json!({
        "metadata": {
            "name": "f-v1-0-12345678",
            "uid": "u-1",
            "resourceVersion": "42",
            "creationTimestamp": "2026-01-02T03:04:00Z",
            "labels": {"app.kubernetes.io/managed-by": "porch-fn-runner"},
            "annotations": {
                "fn.kpt.dev/image-reference": "example.com/f:v1",
                "fn.kpt.dev/slot": "2",
                "fn.kpt.dev/past": "u-0",
                "fn.kpt.dev/shard-key": "example.com/f",
                "fn.kpt.dev/template-version": "inline-v1",
                "fn.kpt.dev/config-time": "2026-01-02T03:04:05Z",
                "fn.kpt.dev/image-digest": "sha256:01",
                "fn.kpt.dev/resolved-at": "2026-01-02T03:04:06Z",
                "fn.kpt.dev/entrypoint": r#"["sh","-c"]"#,
                "fn.kpt.dev/reclaim-after": "2026-01-02T03:04:05.678Z",
            },
        },
        "status": {"podIP": "10.0.0.7"},
    })
}

fn observed(object: Value) -> Option<Observed> {
    let pod: v1::Pod = serde_json::from_value(object).unwrap();
    observe(&pod)
}

/// The object with the value at a JSON pointer replaced. Null counts as absent.
fn with(pointer: &str, value: Value) -> Value {
    let mut object = object();
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

fn without_annotation(name: &str) -> Value {
    let mut object = object();
    object["metadata"]["annotations"].as_object_mut().unwrap().remove(name).unwrap();
    object
}

#[test]
fn all_fields_of_a_pod_are_read() {
    let expected = Observed {
        pod: Pod {
            name: PodName { image: "example.com/f:v1".into(), slot: 2, past: Some("u-0".into()) },
            uid: "u-1".into(),
            resource_version: "42".into(),
            shard_key: "example.com/f".into(),
            terminating_since: None,
            phase: Phase::Pending(None),
            recipe: PodRecipe {
                version: "inline-v1".into(),
                config_time: Some(Time::from_millis(1_767_323_045_000)),
                content: Some(ImageContent {
                    digest: "sha256:01".into(),
                    resolved: Some(Time::from_millis(1_767_323_046_000)),
                }),
            },
            reclaim_after: Some(Time::from_millis(1_767_323_045_678)),
            place_wanted: None,
        },
        ip: Some([10, 0, 0, 7].into()),
        object_name: "f-v1-0-12345678".to_owned(),
        created: Some(Time::from_millis(1_767_323_040_000)),
        entrypoint: Some(vec!["sh".to_owned(), "-c".to_owned()]),
    };
    assert_eq!(observed(object()), Some(expected));
}

#[test]
fn pods_without_our_label_or_annotations_are_ignored() {
    let cases = [
        with("/metadata/labels", Value::Null),
        with("/metadata/labels", json!({"app.kubernetes.io/managed-by": "helm"})),
        with("/metadata/annotations", Value::Null),
        without_annotation("fn.kpt.dev/image-reference"),
        with("/metadata/annotations/fn.kpt.dev~1image-reference", json!("")),
        without_annotation("fn.kpt.dev/slot"),
        with("/metadata/annotations/fn.kpt.dev~1slot", json!("4294967296")),
        with("/metadata/name", Value::Null),
        with("/metadata/uid", Value::Null),
        with("/metadata/resourceVersion", Value::Null),
    ];
    for case in cases {
        assert_eq!(observed(case.clone()), None, "{case}");
    }
}

#[test]
fn other_fields_are_optional() {
    let missing = |name| observed(without_annotation(name)).unwrap().pod;
    assert_eq!(missing("fn.kpt.dev/past").name.past, None);
    assert_eq!(missing("fn.kpt.dev/shard-key").shard_key, "example.com/f:v1".into());
    assert_eq!(missing("fn.kpt.dev/template-version").recipe.version, "".into());
    assert_eq!(missing("fn.kpt.dev/config-time").recipe.config_time, None);
    assert_eq!(missing("fn.kpt.dev/image-digest").recipe.content, None, "a time without a digest");
    let content = ImageContent { digest: "sha256:01".into(), resolved: None };
    assert_eq!(missing("fn.kpt.dev/resolved-at").recipe.content, Some(content));
    assert_eq!(missing("fn.kpt.dev/reclaim-after").reclaim_after, None);
    let ip = |ip: Value| observed(with("/status/podIP", ip)).unwrap().ip;
    assert_eq!((ip(json!(null)), ip(json!("nowhere"))), (None, None));
    assert_eq!(ip(json!("fd00::7")), Some("fd00::7".parse().unwrap()));
    let mut terminating = object();
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:35Z");
    let since = observed(terminating).unwrap().pod.terminating_since;
    assert_eq!(since, Some(Time::from_millis(1_767_323_075_000)));
}
