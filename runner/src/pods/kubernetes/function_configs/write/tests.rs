//! Tests the writes to a FunctionConfig, and which runner sends them. Runners must not overwrite
//! each other.

use serde_json::json;

use super::*;

fn object(status: Value) -> Object {
    let mut object = json!({
        "apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "FunctionConfig",
        "metadata": {
            "name": "set-labels", "namespace": "functions", "uid": "u1", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "annotations": {
                "fn.kpt.dev/min-replicas": "1",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "managedFields": [
                {"manager": "user", "time": "2025-01-02T00:00:00Z"},
                {"manager": "runner", "subresource": "status", "time": "2025-01-03T00:00:00Z"},
            ],
        },
        "spec": {"image": "set-labels", "podExecutor": {}},
    });
    object["status"] = status;
    Object::new(serde_json::from_value(object).unwrap()).unwrap()
}

fn ending(finalizers: &[&str]) -> Object {
    let finalizers = finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect();
    Object { ending: true, finalizers, ..object(json!({})) }
}

/// Whether the current state is in effect, and the problem.
type Outcome = (bool, Option<&'static str>);
const APPLIED: Outcome = (true, None);
const BROKEN: Outcome = (false, Some("bad"));
const LOSES: Outcome = (true, Some("lost"));

fn next(object: &Object, (applied, problem): Outcome, owns: bool) -> Option<Write> {
    next_write(object, applied, problem, owns)
}

fn status(observed: Option<i64>, error: Option<&str>) -> Write {
    Write::Status { observed, error: error.map(str::to_owned) }
}

#[test]
fn what_counts_of_an_object_is_read() {
    let read = object(
        json!({"functionRunnerObservedGeneration": 2, "error": "e", "controllerObservedGeneration": 1}),
    );
    assert_eq!(
        (read.name.as_str(), read.uid.as_str(), read.resource_version.as_str()),
        ("set-labels", "u1", "7")
    );
    assert_eq!((read.generation, read.ending, read.observed, read.error.as_str()), (3, false, Some(2), "e"));
    // Without kubectl's annotation, and the status is no change of configuration.
    let content = json!({
        "metadata": {
            "name": "set-labels", "namespace": "functions", "generation": 3,
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "annotations": {"fn.kpt.dev/min-replicas": "1"},
        },
        "spec": {"image": "set-labels", "podExecutor": {}},
    });
    assert_eq!(read.content, content);
    assert_eq!(read.changed, Some(Time::from_millis(1_735_776_000_000)));
}

#[test]
fn objects_of_any_shape_are_read() {
    for text in [
        r#"{"metadata": {"name": "a"}}"#,
        r#"{"metadata": {"name": "a"}, "spec": null, "status": "x"}"#,
        r#"{"metadata": {"name": "a"}, "spec": [], "status": {"error": 1, "functionRunnerObservedGeneration": "1"}}"#,
    ] {
        let read = Object::new(serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!((read.observed, read.error.as_str(), read.generation), (None, "", 0), "{text}");
    }
    assert_eq!(Object::new(serde_json::from_str(r#"{"metadata": {}}"#).unwrap()), None);
}

/// The observed generation, the error, the outcome, and the next write; the generation is 3.
#[test]
fn the_owner_writes_what_differs() {
    let (bad, lost) = ("function-runner: bad", "function-runner: lost");
    for (observed, error, outcome, expected) in [
        (None, None, APPLIED, Some(status(Some(3), None))),
        (Some(2), None, APPLIED, Some(status(Some(3), None))),
        (Some(3), None, APPLIED, None),
        (None, Some(bad), APPLIED, Some(status(Some(3), Some("")))),
        (Some(3), Some(bad), APPLIED, Some(status(None, Some("")))),
        // An invalid state is not in effect, whatever the state before it was.
        (None, None, BROKEN, Some(status(None, Some(bad)))),
        (Some(2), Some(bad), BROKEN, None),
        (None, Some("function-runner: worse"), BROKEN, Some(status(None, Some(bad)))),
        // An object that loses a conflict still counts as observed.
        (None, None, LOSES, Some(status(Some(3), Some(lost)))),
        (Some(3), Some(lost), LOSES, None),
        // Another writer's error.
        (None, Some("server: no"), APPLIED, Some(status(Some(3), None))),
        (None, Some("server: no"), BROKEN, None),
        (Some(3), Some("server: no"), APPLIED, None),
    ] {
        let object = object(json!({"functionRunnerObservedGeneration": observed, "error": error}));
        assert_eq!(next(&object, outcome, true), expected, "{observed:?} {error:?} {outcome:?}");
        assert_eq!(next(&object, outcome, false), None, "only the owner");
    }
}

#[test]
fn every_runner_removes_the_finalizer_of_what_is_deleted() {
    let others = "config.porch.kpt.dev/functionconfig-porch-server";
    for (finalizers, expected) in [
        (&[FINALIZER][..], Some(Write::Finalizer { index: 0 })),
        (&[others, FINALIZER], Some(Write::Finalizer { index: 1 })),
        (&[others], None),
        (&[], None),
    ] {
        for (outcome, owns) in [(APPLIED, true), (APPLIED, false), (BROKEN, true)] {
            assert_eq!(next(&ending(finalizers), outcome, owns), expected);
        }
    }
    let kept = Object { ending: false, observed: Some(3), ..ending(&[FINALIZER]) };
    assert_eq!(next(&kept, APPLIED, true), None, "it is not deleted");
}

#[test]
fn patches_touch_nothing_else() {
    for (write, expected) in [
        (status(Some(3), None), json!({"status": {"functionRunnerObservedGeneration": 3}})),
        (
            status(Some(3), Some("")),
            json!({"metadata": {"resourceVersion": "7"},
                   "status": {"functionRunnerObservedGeneration": 3, "error": null}}),
        ),
        (
            status(None, Some("bad")),
            json!({"metadata": {"resourceVersion": "7"}, "status": {"error": "bad"}}),
        ),
        (
            Write::Finalizer { index: 1 },
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u1"},
                {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
                {"op": "remove", "path": "/metadata/finalizers/1"},
            ]),
        ),
    ] {
        assert_eq!(write.patch(&object(json!({}))), expected);
    }
}
