//! Tests how answers of the API server are classified. A wrong result loses pods or creates them
//! twice. A push is a write of a later `reclaim-after` to a pod: see runner/pool/src/lib.rs.

use serde_json::json;

use super::*;

fn api(code: u16, reason: &str, message: &str) -> RequestError {
    kube::Error::Api(Status::failure(message, reason).with_code(code).boxed()).into()
}

/// An error whose `details` have causes, or a time to wait before the retry.
fn detailed(code: u16, reason: &str, details: &serde_json::Value) -> RequestError {
    let status =
        json!({"status": "Failure", "code": code, "reason": reason, "message": "", "details": details});
    kube::Error::Api(serde_json::from_value(status).unwrap()).into()
}

fn lost_connection() -> RequestError {
    kube::Error::Service("connection reset by peer".into()).into()
}

/// Each case has the error, the expected kind of the refusal, and a part of its text.
#[test]
fn refused_creates_have_a_kind_and_a_fix() {
    let forbidden = |message: &str| api(403, "Forbidden", &format!("pods \"f\" is forbidden: {message}"));
    let denied = r#"admission webhook "w" denied the request: no"#;
    let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
    let ends = json!({"causes": [{"reason": "NamespaceTerminating", "message": "", "field": ""}]});
    let cases = [
        (forbidden("exceeded quota: q, requested: pods=1"), "quota", "is used up"),
        (forbidden("failed quota: q: must specify limits.cpu for: function"), "quota", "asks for"),
        (
            forbidden(r#"violates PodSecurity "restricted:latest": runAsNonRoot != true"#),
            "pod_security",
            "pod-security",
        ),
        (forbidden(r#"User "u" cannot create resource "pods" in API group """#), "rights", "may not create"),
        (forbidden("error looking up service account n/s"), "service_account", "service account of"),
        (forbidden("no new content because it is being terminated"), "namespace", "being deleted"),
        (detailed(403, "Forbidden", &ends), "namespace", "being deleted"),
        (forbidden("maximum cpu usage per Container is 1, but limit is 2"), "admission", "LimitRanges"),
        (api(403, "Forbidden", denied), "policy", "it requires"),
        (api(400, "BadRequest", denied), "policy", "it requires"),
        (api(500, "InternalError", denied), "policy", "it requires"),
        (api(422, "Invalid", policy), "policy", "it requires"),
        (api(422, "Invalid", "spec.containers[0].image: Required value"), "invalid", "finds the pod"),
        (api(400, "BadRequest", "cannot be handled as a Pod"), "invalid", "finds the pod"),
        (api(413, "RequestEntityTooLarge", "limit is 3145728"), "invalid", "finds the pod"),
        (api(404, "NotFound", r#"namespaces "n" not found"#), "namespace", "does not exist"),
    ];
    for (error, expected, part) in cases {
        let created = creation(&error);
        let is_quota = part == "is used up";
        let (Creation::Refused(reason) | Creation::OverQuota(reason)) = &created else {
            panic!("{error}: {created:?}")
        };
        let Reason { kind, text } = reason;
        assert!(*kind == expected && text.contains(part), "{error}: {text}");
        assert_eq!(matches!(created, Creation::OverQuota(_)), is_quota, "{error}");
    }
}

/// Each case has the error, and its result for a create, a delete and a push.
#[test]
fn other_answers_are_conflicts_or_inconclusive() {
    use WriteOutcome::{Conflict, Gone, Unknown, Unreachable};
    let unknown = || Some(Creation::Unknown);
    let no_answer = (Some(Creation::Unreachable), Unreachable, Unreachable);
    let mut cases = vec![
        (api(409, "AlreadyExists", "pods \"f\" already exists"), (Some(Creation::Exists), Unknown, Unknown)),
        (api(409, "Conflict", "the UID in the precondition does not match"), (unknown(), Conflict, Conflict)),
        (api(422, "Invalid", "metadata.uid: field is immutable"), (None, Unknown, Conflict)),
        (api(404, "NotFound", "pods \"f\" not found"), (None, Gone, Gone)),
        (api(403, "Forbidden", "cannot delete resource \"pods\""), (None, Unknown, Unknown)),
        (api(401, "Unauthorized", "Unauthorized"), (unknown(), Unknown, Unknown)),
        (api(429, "TooManyRequests", "too many requests"), (unknown(), Unknown, Unknown)),
        (api(429, NO_STATUS, "Too many requests, please try again later."), (unknown(), Unknown, Unknown)),
        (api(500, "InternalError", "failed calling webhook \"w\": refused"), (unknown(), Unknown, Unknown)),
        // A create that times out does not count as `Unreachable`: the cause may be a webhook that
        // hangs for this image only.
        (RequestError::Timeout, (unknown(), Unreachable, Unreachable)),
        (api(500, "ServerTimeout", "No API token found"), no_answer.clone()),
        (api(503, "ServiceUnavailable", "apiserver is shutting down"), no_answer.clone()),
        (api(504, "Timeout", "request did not complete"), no_answer.clone()),
        (lost_connection(), no_answer.clone()),
    ];
    // A proxy's answers: the body is not a Status, so the kube crate sets the reason `NO_STATUS`.
    let proxy =
        [400, 403, 404, 409, 413, 422, 502].map(|code| (api(code, NO_STATUS, "<html>"), no_answer.clone()));
    cases.extend(proxy);
    for (error, (created, deleted, pushed)) in cases {
        if let Some(created) = created {
            assert_eq!(creation(&error), created, "{error}");
        }
        assert_eq!((deletion(&error), pushing(&error)), (deleted, pushed), "{error}");
    }
}

#[test]
fn the_server_sets_the_pause_before_a_retry() {
    let pause =
        |seconds: u32| retry_after(&detailed(429, "TooManyRequests", &json!({"retryAfterSeconds": seconds})));
    assert_eq!(pause(3), Some(Duration::from_secs(3)));
    assert_eq!(pause(7000), Some(LONGEST_RETRY_AFTER));
    assert_eq!(pause(0), Some(Duration::from_secs(1)), "flow control sends it in a header");
    assert_eq!(retry_after(&api(500, "InternalError", "")), None);
    assert_eq!(retry_after(&lost_connection()), None);
}
