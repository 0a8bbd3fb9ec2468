//! Tests the writes to a FunctionConfig. Runners must not overwrite other writers' fields.

use super::*;

fn object(status: Value) -> Object {
    let mut object = json!({
        "apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "FunctionConfig",
        "metadata": {
            "name": "set-labels", "namespace": "functions", "uid": "u1", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "managedFields": [
                {"manager": "user", "time": "2025-01-02T00:00:00Z"},
                {"manager": "runner", "subresource": "status", "time": "2025-01-03T00:00:00Z"},
            ],
        },
        "spec": {"image": "set-labels", "podExecutor": {}},
    });
    object["status"] = status;
    Object::new(serde_json::from_value(object).unwrap())
}

fn ending(finalizers: &[&str]) -> Object {
    let mut object = object(json!({}));
    object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
    object.metadata.finalizers = Some(finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect());
    object
}

/// Whether the object's current spec is in effect, and the problem with it.
type Outcome = (bool, Option<&'static str>);
const APPLIED: Outcome = (true, None);
const BROKEN: Outcome = (false, Some("bad"));
const CONFLICT: Outcome = (true, Some("lost"));

fn next(object: &Object, (applied, problem): Outcome) -> Option<Write> {
    next_write(object, applied, problem)
}

fn status(observed: Option<i64>, error: Option<&str>) -> Write {
    Write::Status { observed, error: error.map(str::to_owned) }
}

#[test]
fn objects_of_any_shape_are_read() {
    let read = object(json!({"functionRunnerObservedGeneration": 2, "error": "e"}));
    assert_eq!((read.observed, read.error.as_str()), (Some(2), "e"));
    // A write of the status does not count as a change of the configuration.
    assert_eq!(read.changed, Some(Time::from_millis(1_735_776_000_000)));
    for text in [
        r#"{"metadata": {"name": "a"}}"#,
        r#"{"metadata": {"name": "a"}, "spec": null, "status": "x"}"#,
        r#"{"metadata": {"name": "a"}, "spec": [], "status": {"error": 1, "functionRunnerObservedGeneration": "1"}}"#,
    ] {
        let read = Object::new(serde_json::from_str(text).unwrap());
        assert_eq!((read.observed, read.error.as_str(), read.changed), (None, "", None), "{text}");
    }
}

/// Each case has the status (observed generation and error), the outcome, and the expected write.
/// The object's generation is 3.
#[test]
fn only_differences_are_written() {
    let (bad, lost) = ("function-runner: bad", "function-runner: lost");
    for (observed, error, outcome, expected) in [
        (None, None, APPLIED, Some(status(Some(3), None))),
        (Some(2), None, APPLIED, Some(status(Some(3), None))),
        (Some(3), None, APPLIED, None),
        (None, Some(bad), APPLIED, Some(status(Some(3), Some("")))),
        (Some(3), Some(bad), APPLIED, Some(status(None, Some("")))),
        // An invalid spec is never reported as observed, whatever the status was before.
        (None, None, BROKEN, Some(status(None, Some(bad)))),
        (Some(2), Some(bad), BROKEN, None),
        (None, Some("function-runner: worse"), BROKEN, Some(status(None, Some(bad)))),
        // A valid object that loses to another FunctionConfig still counts as observed.
        (None, None, CONFLICT, Some(status(Some(3), Some(lost)))),
        (Some(3), Some(lost), CONFLICT, None),
        // Another writer's error is not overwritten.
        (None, Some("server: no"), APPLIED, Some(status(Some(3), None))),
        (None, Some("server: no"), BROKEN, None),
        (Some(3), Some("server: no"), APPLIED, None),
    ] {
        let object = object(json!({"functionRunnerObservedGeneration": observed, "error": error}));
        assert_eq!(next(&object, outcome), expected, "{observed:?} {error:?} {outcome:?}");
    }
}

#[test]
fn only_our_finalizer_of_a_deleted_object_is_removed() {
    let others = "config.porch.kpt.dev/functionconfig-porch-server";
    for (finalizers, left) in [
        (&[FINALIZER][..], Some(json!([]))),
        (&[others, FINALIZER], Some(json!([others]))),
        (&[others], None),
        (&[], None),
    ] {
        let object = ending(finalizers);
        for outcome in [APPLIED, BROKEN] {
            let patch = next(&object, outcome).map(|write| write.patch(&object));
            let metadata = |left| json!({"metadata": {"resourceVersion": "7", "finalizers": left}});
            assert_eq!(patch, left.clone().map(metadata), "{finalizers:?}");
        }
    }
    let mut kept = Object { observed: Some(3), ..ending(&[FINALIZER]) };
    kept.metadata.deletion_timestamp = None;
    assert_eq!(next(&kept, APPLIED), None, "the object is not deleted");
}

#[test]
fn patches_change_no_other_fields() {
    let version = json!({"resourceVersion": "7"});
    for (write, expected) in [
        (status(Some(3), None), json!({"status": {"functionRunnerObservedGeneration": 3}})),
        (
            status(Some(3), Some("")),
            json!({"metadata": version, "status": {"functionRunnerObservedGeneration": 3, "error": null}}),
        ),
        (status(None, Some("bad")), json!({"metadata": version, "status": {"error": "bad"}})),
    ] {
        assert_eq!(write.patch(&object(json!({}))), expected);
    }
}
