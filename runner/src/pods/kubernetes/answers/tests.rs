//! What the API server's answers mean, as a table: a wrong reading loses pods or makes them twice.

use kube::core::response::{StatusCause, StatusDetails};
use proptest::prelude::*;

use super::*;

fn api(code: u16, reason: &str, message: &str) -> kube::Error {
    kube::Error::Api(Status::failure(message, reason).with_code(code).boxed())
}

fn broken_off() -> kube::Error {
    kube::Error::Service("connection reset by peer".into())
}

/// The refusal's text, or what else came.
fn refused(error: &kube::Error) -> String {
    match creation(error) {
        Creation::Refused(reason) | Creation::OverQuota(reason) => reason.to_string(),
        other => format!("{other:?}"),
    }
}

const FORBIDDEN: &str = "Forbidden";

#[test]
fn refused_creates_say_what_to_change() {
    let cases = [
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"#,
            Refusal::Quota,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: failed quota: q: must specify limits.cpu for: function"#,
            Refusal::QuotaWants,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true"#,
            Refusal::PodSecurity,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "n""#,
            Refusal::Rights,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: error looking up service account n/s: serviceaccount "s" not found"#,
            Refusal::ServiceAccount,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: unable to create new content in namespace n because it is being terminated"#,
            Refusal::NamespaceEnds,
        ),
        (
            403,
            FORBIDDEN,
            r#"pods "f" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#,
            Refusal::Admission,
        ),
        (403, FORBIDDEN, r#"admission webhook "w" denied the request: no"#, Refusal::Policy),
        (400, "BadRequest", r#"admission webhook "w" denied the request: no"#, Refusal::Policy),
        (500, "InternalError", r#"admission webhook "w" denied the request: no"#, Refusal::Policy),
        (
            422,
            "Invalid",
            r#"pods "f" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"#,
            Refusal::Policy,
        ),
        (422, "Invalid", r#"Pod "f" is invalid: spec.containers[0].image: Required value"#, Refusal::Invalid),
        (400, "BadRequest", "Pod in version \"v1\" cannot be handled as a Pod", Refusal::Invalid),
        (413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728", Refusal::Invalid),
        (404, "NotFound", r#"namespaces "n" not found"#, Refusal::NoNamespace),
    ];
    for (code, reason, message, expected) in cases {
        assert_eq!(refused(&api(code, reason, message)), expected.to_string(), "{message}");
    }
}

#[test]
fn an_ending_namespace_is_known_by_its_cause_too() {
    let cause = StatusCause {
        reason: "NamespaceTerminating".to_owned(),
        message: String::new(),
        field: "metadata.namespace".to_owned(),
    };
    let details = StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![cause],
        retry_after_seconds: 0,
    };
    let status = Status::failure("in other words", FORBIDDEN).with_code(403).with_details(details);
    assert_eq!(refused(&kube::Error::Api(status.boxed())), Refusal::NamespaceEnds.to_string());
}

#[test]
fn a_held_name_is_no_refusal() {
    assert_eq!(creation(&api(409, "AlreadyExists", r#"pods "f" already exists"#)), Creation::Exists);
}

#[test]
fn what_may_pass_or_was_perhaps_carried_out_is_unknown() {
    let cases = [
        api(409, "Conflict", "Operation cannot be fulfilled on resourcequotas"),
        api(401, "Unauthorized", "Unauthorized"),
        api(429, "TooManyRequests", "the server has received too many requests"),
        api(
            500,
            "InternalError",
            r#"Internal error occurred: failed calling webhook "w": connection refused"#,
        ),
        api(429, "Failed to parse error data", "Too many requests, please try again later."),
    ];
    for error in cases {
        assert_eq!(creation(&error), Creation::Unknown, "{error}");
    }
}

#[test]
fn what_is_not_about_one_pod_is_no_answer() {
    for error in [
        api(500, "ServerTimeout", "No API token found for service account"),
        api(502, "Failed to parse error data", "bad gateway"),
        api(503, "ServiceUnavailable", "apiserver is shutting down"),
        api(504, "Timeout", "request did not complete within requested timeout"),
        broken_off(),
    ] {
        assert_eq!(creation(&error), Creation::Unreachable, "{error}");
        assert_eq!(deletion(&error), WriteOutcome::Unreachable, "{error}");
        assert_eq!(pushing(&error), WriteOutcome::Unreachable, "{error}");
    }
}

#[test]
fn the_server_says_how_long_to_leave_it_alone() {
    let asked = |seconds: u32| {
        let status = serde_json::json!({
            "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "",
            "details": {"retryAfterSeconds": seconds},
        });
        retry_after(&kube::Error::Api(serde_json::from_value(status).unwrap()))
    };
    assert_eq!(asked(3), Some(Duration::from_secs(3)));
    assert_eq!(asked(7000), Some(LONGEST_RETRY_AFTER));
    assert_eq!(asked(0), Some(Duration::from_secs(1)), "flow control says it in a header");
    assert_eq!(retry_after(&api(500, "InternalError", "")), None);
    assert_eq!(retry_after(&broken_off()), None);
}

#[test]
fn deletes() {
    let cases = [
        (api(409, "Conflict", "the UID in the precondition does not match"), WriteOutcome::Conflict),
        (api(404, "NotFound", r#"pods "f" not found"#), WriteOutcome::Gone),
        (api(403, FORBIDDEN, r#"cannot delete resource "pods""#), WriteOutcome::Unknown),
        (api(500, "InternalError", ""), WriteOutcome::Unknown),
        (api(429, "TooManyRequests", ""), WriteOutcome::Unknown),
    ];
    for (error, expected) in cases {
        assert_eq!(deletion(&error), expected, "{error}");
    }
}

#[test]
fn pushes() {
    let cases = [
        (api(409, "Conflict", "the object has been modified"), WriteOutcome::Conflict),
        (api(422, "Invalid", "metadata.uid: field is immutable"), WriteOutcome::Conflict),
        (api(404, "NotFound", r#"pods "f" not found"#), WriteOutcome::Gone),
        (api(403, FORBIDDEN, r#"cannot patch resource "pods""#), WriteOutcome::Unknown),
    ];
    for (error, expected) in cases {
        assert_eq!(pushing(&error), expected, "{error}");
    }
}

#[test]
fn what_a_proxy_says_is_no_answer() {
    for code in [400, 403, 404, 409, 413, 422] {
        // As kube makes it of a body that is no Status.
        let error = api(code, "Failed to parse error data", "<html>no</html>");
        assert_eq!(creation(&error), Creation::Unreachable, "{code}");
        assert_eq!(deletion(&error), WriteOutcome::Unreachable, "{code}");
        assert_eq!(pushing(&error), WriteOutcome::Unreachable, "{code}");
    }
}

proptest! {
    #[test]
    fn the_servers_words_never_reach_callers(
        code in prop_oneof![Just(400_u16), Just(403), Just(404), Just(409), Just(413), Just(422), 400..600_u16],
        reason in prop_oneof![Just("Forbidden"), Just("Invalid"), Just("NotFound"), Just("BadRequest"), Just("")],
        known in prop_oneof![
            Just("exceeded quota"), Just("failed quota"), Just("violates PodSecurity"), Just("denied the request"),
            Just("cannot create resource"), Just("error looking up service account"), Just(""),
        ],
        before in ".{0,40}",
        after in ".{0,40}",
    ) {
        use Refusal::{Admission, Invalid, NamespaceEnds, NoNamespace, PodSecurity, Policy, Quota, QuotaWants, Rights, ServiceAccount};
        let table = [
            Quota, QuotaWants, PodSecurity, Policy, ServiceAccount, Admission, Rights, NoNamespace, NamespaceEnds, Invalid,
        ];
        if let Creation::Refused(reason) | Creation::OverQuota(reason) = creation(&api(code, reason, &format!("{before}{known}{after}"))) {
            prop_assert!(table.iter().any(|refusal| refusal.to_string() == reason.to_string()), "{reason}");
        }
    }
}
