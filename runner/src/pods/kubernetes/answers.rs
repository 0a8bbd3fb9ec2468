//! What the API server answered, as the pool wants it.
//!
//! Only what the server clearly refused counts as refused. Anything else may have been carried out, and the watch will tell; a
//! 429 certainly was not, yet looking again is the right thing to do there too. An answer is about one object, so its image alone
//! is doubtful then; without an answer all images are.

use std::time::Duration;

use kube::core::Status;
use kube::core::response::reason;
use porch_fn_pool::{Creation, Reason, WriteOutcome};

/// Why a pod may not be created, and what to do about it. The server's own words are for our log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error(
        "a ResourceQuota of the function namespace is used up: raise it, or lower --max-parallel-pods-per-function or the \
         functions' resource requests"
    )]
    Quota,
    #[error(
        "a ResourceQuota of the function namespace asks for resource requests or limits that the pod does not have: set them in the \
         pod template (--function-pod-template) or in --pod-cache-config"
    )]
    QuotaWants,
    #[error(
        "Pod Security admission refused the pod: check the pod template (--function-pod-template) against the function namespace's \
         pod-security.kubernetes.io/enforce label"
    )]
    PodSecurity,
    #[error(
        "an admission webhook or policy refused the pod: ask the cluster's administrators what it demands of pods in the function \
         namespace"
    )]
    Policy,
    #[error(
        "the service account of the pod template (--function-pod-template) does not exist in the function namespace: create it"
    )]
    ServiceAccount,
    #[error(
        "the cluster's admission refused the pod: check the pod template (--function-pod-template) against the LimitRanges and other \
         rules of the function namespace"
    )]
    Admission,
    #[error(
        "the runner may not create pods and Services in the function namespace: grant its service account the Role of the \
         deployment manifests there"
    )]
    Rights,
    #[error("the function namespace (--pod-namespace) does not exist: create it")]
    NoNamespace,
    #[error("the function namespace (--pod-namespace) is being deleted: wait for it and create it again")]
    NamespaceEnds,
    #[error(
        "the API server finds the pod or its Service invalid: check the templates (--function-pod-template) and the resources in \
         --pod-cache-config"
    )]
    Invalid,
}

impl Refusal {
    /// Its name in metrics.
    fn kind(self) -> &'static str {
        match self {
            Self::Quota | Self::QuotaWants => "quota",
            Self::PodSecurity => "pod_security",
            Self::Policy => "policy",
            Self::ServiceAccount => "service_account",
            Self::Admission => "admission",
            Self::Rights => "rights",
            Self::NoNamespace | Self::NamespaceEnds => "namespace",
            Self::Invalid => "invalid",
        }
    }
}

/// kube's reason where the body of an answer is no Status.
const NO_STATUS: &str = "Failed to parse error data";
/// The pool waits a minute for an answer, attempts and permits included.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

/// What a failed create means.
pub(crate) fn creation(error: &kube::Error) -> Creation {
    let Some(status) = status(error).filter(|_| !says_nothing_of_pods(error)) else {
        return Creation::Unreachable;
    };
    if status.reason == reason::ALREADY_EXISTS {
        return Creation::Exists;
    }
    match refusal(status) {
        Some(refusal) => {
            let reason = Reason::Found { kind: refusal.kind(), text: refusal.to_string().into() };
            if refusal == Refusal::Quota { Creation::OverQuota(reason) } else { Creation::Refused(reason) }
        }
        None => Creation::Unknown,
    }
}

/// What a failed delete means.
pub(crate) fn deletion(error: &kube::Error) -> WriteOutcome {
    match reason_of(error) {
        _ if says_nothing_of_pods(error) => WriteOutcome::Unreachable,
        reason::CONFLICT => WriteOutcome::Conflict,
        reason::NOT_FOUND => WriteOutcome::Gone,
        _ => WriteOutcome::Unknown,
    }
}

/// What a failed patch of reclaim-after means.
pub(crate) fn pushing(error: &kube::Error) -> WriteOutcome {
    match reason_of(error) {
        // A uid that differs is a conflict to some servers and an invalid change to others.
        reason::CONFLICT | reason::INVALID => WriteOutcome::Conflict,
        reason::NOT_FOUND => WriteOutcome::Gone,
        _ if says_nothing_of_pods(error) => WriteOutcome::Unreachable,
        _ => WriteOutcome::Unknown,
    }
}

/// How long the server asks to be left alone after this answer. Its flow control says so in a header that is not kept: there it is
/// always a second (`k8s.io/apiserver/pkg/endpoints/filters`).
pub(crate) fn retry_after(error: &kube::Error) -> Option<Duration> {
    let status = status(error)?;
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let seconds = if seconds == 0 && status.code == 429 { 1 } else { seconds };
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER))
}

/// Whether what went wrong is not about the object of the request: there is no answer, it comes from a proxy on the way, or the
/// server itself is not well.
fn says_nothing_of_pods(error: &kube::Error) -> bool {
    let Some(status) = status(error) else { return true };
    match status.reason.as_str() {
        reason::SERVICE_UNAVAILABLE | reason::TIMEOUT | reason::SERVER_TIMEOUT => true,
        // Flow control answers in plain text.
        NO_STATUS => status.code != 429,
        _ => false,
    }
}

/// The server's answer, if there is one.
fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// The reason in the server's answer. Codes are not asked: one without a reason of Kubernetes comes from a proxy on the way, which
/// knows nothing of pods.
fn reason_of(error: &kube::Error) -> &str {
    status(error).map_or("", |status| &status.reason)
}

/// The server gives one reason for most refusals; its message is what tells them apart.
fn refusal(status: &Status) -> Option<Refusal> {
    let says = |text: &str| status.message.contains(text);
    // A webhook or policy may answer with any code it likes.
    if says("denied the request") || (says("ValidatingAdmissionPolicy") && says("denied request")) {
        return Some(Refusal::Policy);
    }
    match status.reason.as_str() {
        reason::FORBIDDEN => Some(forbidden(status)),
        reason::NOT_FOUND => Some(Refusal::NoNamespace),
        reason::INVALID | reason::BAD_REQUEST | reason::REQUEST_ENTITY_TOO_LARGE => Some(Refusal::Invalid),
        _ => None,
    }
}

fn forbidden(status: &Status) -> Refusal {
    let says = |text: &str| status.message.contains(text);
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let namespace_ends = causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating");
    if namespace_ends || says("because it is being terminated") {
        Refusal::NamespaceEnds
    } else if says("exceeded quota") {
        Refusal::Quota
    } else if says("failed quota") {
        Refusal::QuotaWants
    } else if says("violates PodSecurity") {
        Refusal::PodSecurity
    } else if says("error looking up service account") {
        Refusal::ServiceAccount
    } else if says("cannot create resource") {
        Refusal::Rights
    } else {
        Refusal::Admission
    }
}

#[cfg(test)]
mod tests;
