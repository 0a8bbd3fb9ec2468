//! Translates answers of the API server into results for the pool.
//!
//! A request counts as refused only if the server clearly refused it. Any other failed request may
//! have been executed; the watch then reports the result. After an unclear answer (`Unknown`), the
//! pool deletes no unused pod of this image for a while. After a missing answer (`Unreachable`),
//! this applies to all images.

#[cfg(test)]
mod tests;

use std::time::Duration;

use kube::core::Status;
use kube::core::response::reason;
use porch_fn_kubernetes::RequestError;
use porch_fn_pool::{Creation, Reason, WriteOutcome};

/// The refusal's label in metrics, and a text for callers with the cause and the fix. The server's
/// own message goes to the runner's log.
type Refusal = (&'static str, &'static str);

const QUOTA: Refusal = (
    "quota",
    "a ResourceQuota of the function namespace is used up: raise it, or lower --max-parallel-pods-per-function or the \
     functions' resource requests",
);
const POLICY: Refusal = (
    "policy",
    "an admission webhook or policy refused the pod: ask the cluster's administrators what it requires of pods in the function \
     namespace",
);
const ADMISSION: Refusal = (
    "admission",
    "the cluster's admission refused the pod: check the pod template (--function-pod-template) against the LimitRanges and other \
     rules of the function namespace",
);
const NO_NAMESPACE: Refusal =
    ("namespace", "the function namespace (--pod-namespace) does not exist: create it");
const NAMESPACE_ENDS: Refusal = (
    "namespace",
    "the function namespace (--pod-namespace) is being deleted: wait until it is gone, and create it again",
);
const INVALID: Refusal = (
    "invalid",
    "the API server finds the pod or its Service invalid: check the templates (--function-pod-template) and the resources in \
     --pod-cache-config",
);
const NO_RESOURCES: Refusal = (
    "quota",
    "a ResourceQuota of the function namespace asks for resource requests or limits that the pod does not have: set them in the \
     pod template (--function-pod-template) or in --pod-cache-config",
);
const POD_SECURITY: Refusal = (
    "pod_security",
    "Pod Security admission refused the pod: check the pod template (--function-pod-template) against the function namespace's \
     pod-security.kubernetes.io/enforce label",
);
const NO_SERVICE_ACCOUNT: Refusal = (
    "service_account",
    "the service account of the pod template (--function-pod-template) does not exist in the function namespace: create it",
);
const NO_PERMISSION: Refusal = (
    "rights",
    "the runner may not create pods and Services in the function namespace: grant its service account the Role of the \
     deployment manifests there",
);
/// The server gives the reason Forbidden for most refusals; only its message distinguishes them.
const FORBIDDEN: [(&str, Refusal); 6] = [
    ("because it is being terminated", NAMESPACE_ENDS),
    ("exceeded quota", QUOTA),
    ("failed quota", NO_RESOURCES),
    ("violates PodSecurity", POD_SECURITY),
    ("error looking up service account", NO_SERVICE_ACCOUNT),
    ("cannot create resource", NO_PERMISSION),
];

/// The reason that the kube crate sets if the body of an answer is not a Status.
const NO_STATUS: &str = "Failed to parse error data";
/// Longest pause after an answer that asks clients to wait. The pool waits one minute for the
/// result. This minute includes all attempts, pauses and waits for permits.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Classifies a failed create.
pub(super) fn creation(error: &RequestError) -> Creation {
    if matches!(error, RequestError::Timeout) {
        // The cause may be a webhook that delays only pods of this image. So the API server does
        // not count as unreachable.
        return Creation::Unknown;
    }
    let Some(status) = status(error).filter(|_| !is_unrelated_to_pod(error)) else {
        return Creation::Unreachable;
    };
    if status.reason == reason::ALREADY_EXISTS {
        return Creation::Exists;
    }
    let Some(refusal) = refusal(status) else { return Creation::Unknown };
    let (kind, text) = refusal;
    let reason = Reason::new(kind, text);
    if refusal == QUOTA { Creation::OverQuota(reason) } else { Creation::Refused(reason) }
}

/// Classifies a failed delete.
pub(super) fn deletion(error: &RequestError) -> WriteOutcome {
    match reason_of(error) {
        _ if is_unrelated_to_pod(error) => WriteOutcome::Unreachable,
        reason::CONFLICT => WriteOutcome::Conflict,
        reason::NOT_FOUND => WriteOutcome::Gone,
        _ => WriteOutcome::Unknown,
    }
}

/// Classifies a failed push: a patch of a pod's `reclaim-after`, the time until which the owner does
/// not delete the pod.
pub(super) fn pushing(error: &RequestError) -> WriteOutcome {
    // Some servers report a different UID as a conflict, others as an invalid change.
    if reason_of(error) == reason::INVALID { WriteOutcome::Conflict } else { deletion(error) }
}

/// How long the server asks clients to wait after this answer. Its flow control (429) sends the
/// time in a header that the kube crate drops. This time is always one second
/// (`k8s.io/apiserver/pkg/endpoints/filters`).
pub(super) fn retry_after(error: &RequestError) -> Option<Duration> {
    let status = status(error)?;
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let seconds = if seconds == 0 && status.code == 429 { 1 } else { seconds };
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER))
}

/// Whether the failure has nothing to do with the requested object. Then there is no answer, or a
/// proxy answered, or the API server itself is unhealthy.
fn is_unrelated_to_pod(error: &RequestError) -> bool {
    let Some(status) = status(error) else { return true };
    match status.reason.as_str() {
        reason::SERVICE_UNAVAILABLE | reason::TIMEOUT | reason::SERVER_TIMEOUT => true,
        // The API server's flow control answers 429 in plain text; other text is from a proxy.
        NO_STATUS => status.code != 429,
        _ => false,
    }
}

/// The server's answer, if there is one.
fn status(error: &RequestError) -> Option<&Status> {
    match error {
        RequestError::Kube(kube::Error::Api(status)) => Some(status),
        RequestError::Kube(_) | RequestError::Timeout => None,
    }
}

/// The reason in the server's answer, or an empty text. The HTTP code is ignored: an answer without
/// a Kubernetes reason comes from a proxy, which knows nothing about pods.
fn reason_of(error: &RequestError) -> &str {
    status(error).map_or("", |status| &status.reason)
}

fn refusal(status: &Status) -> Option<Refusal> {
    let has = |text: &str| status.message.contains(text);
    // A webhook or policy may answer with any code.
    if has("denied the request") || (has("ValidatingAdmissionPolicy") && has("denied request")) {
        return Some(POLICY);
    }
    match status.reason.as_str() {
        reason::FORBIDDEN => {
            let mut causes = status.details.iter().flat_map(|details| &details.causes);
            if causes.any(|cause| cause.reason == "NamespaceTerminating") {
                return Some(NAMESPACE_ENDS);
            }
            let found = FORBIDDEN.iter().find(|(text, _)| has(text));
            Some(found.map_or(ADMISSION, |(_, refusal)| *refusal))
        }
        reason::NOT_FOUND => Some(NO_NAMESPACE),
        reason::INVALID | reason::BAD_REQUEST | reason::REQUEST_ENTITY_TOO_LARGE => Some(INVALID),
        _ => None,
    }
}
