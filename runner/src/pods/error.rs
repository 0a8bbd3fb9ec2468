//! Errors for callers: a pod gave no answer, or the function failed in its pod. The codes and the
//! texts around an error are those of Porch's function runner.

use porch_fn_grpc::{Refused, Reply, cut_message, message_of, set_message};
use porch_fn_image::ReferenceError;
use porch_fn_pool::Rejection::{self, DeadlineExceeded, NoRoom, NotReady, PodFailed, QueueFull};
use porch_fn_registry::RegistryError::{self, NoMatch};
use tonic::Code;

/// The kind of a pod's failure if its sandbox cannot have its image.
pub const IMAGE_MISSING: &str = "image_missing";

/// Why the pod runtime cannot return an answer of the pod's wrapper-server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodError {
    /// The image is not a valid reference.
    #[error("{0}")]
    Image(ReferenceError),
    /// No image was found for the constraint in the `tag` field.
    #[error("tag constraint {constraint:?}: {source}")]
    Unresolved {
        /// The constraint, as the caller wrote it.
        constraint: String,
        source: RegistryError,
    },
    /// The pool's rules refuse the call.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The pod vanished after it was granted, or is unreachable.
    #[error("the function's pods vanished or cannot be reached: retry later, and check the runner's log")]
    Vanished,
    /// The runner is shutting down.
    #[error("the runner is shutting down")]
    Stopped,
    /// Pods died while they ran the call.
    #[error(
        "the connections to the function's pods were lost during this call, and the call is not run again: \
         look for out-of-memory kills and crashes of the function"
    )]
    Broken,
    /// The runner already holds too many bytes in flight to accept the answer.
    #[error(transparent)]
    Refused(Refused),
    /// The answer is above the limit.
    #[error(
        "grpc: received message larger than max ({size} vs. {limit}): the function's answer is above \
         --max-request-body-size; raise it on router and runners, and Porch's limit with it"
    )]
    TooLarge {
        /// Announced size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl PodError {
    /// The `reason` label in metrics of a call that got no pod.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Rejected(QueueFull { .. }) => "queue_full",
            Self::Rejected(DeadlineExceeded { .. }) => "deadline",
            Self::Rejected(NoRoom) => "no_room",
            Self::Rejected(PodFailed { .. }) => "pod_failed",
            Self::Rejected(NotReady { .. }) => "pod_not_ready",
            Self::Stopped => "stopped",
            _ => "pods_broke",
        }
    }

    /// The answer to a call. `image` is the text that the caller wrote.
    pub(super) fn reply(&self, image: &str) -> Reply {
        let no_client = || format!("unable to get the grpc client to the pod for {image}: {self}");
        match self {
            Self::Image(error) => {
                let text = format!("unable to evaluate {image} with pod evaluator: {error}");
                Reply::failed(Code::InvalidArgument, &text)
            }
            Self::Unresolved { source: NoMatch | RegistryError::NotFound, .. } => {
                Reply::failed(Code::NotFound, &no_client())
            }
            Self::Rejected(PodFailed { reason }) if reason.kind == IMAGE_MISSING => {
                Reply::failed(Code::NotFound, &no_client())
            }
            // grpc-go turns an error without a status into this code.
            Self::Unresolved { .. } | Self::Rejected(PodFailed { .. }) => {
                Reply::failed(Code::Unknown, &no_client())
            }
            Self::Vanished | Self::Stopped => Reply::shed(Code::Unavailable, &no_client()),
            Self::Rejected(QueueFull { .. }) => Reply::shed(Code::ResourceExhausted, &no_client()),
            Self::Rejected(NotReady { .. } | NoRoom) => Reply::failed(Code::DeadlineExceeded, &no_client()),
            Self::Rejected(DeadlineExceeded { .. }) => {
                let text = format!("function evaluation timed out for {image}: {self}");
                Reply::failed(Code::DeadlineExceeded, &text)
            }
            Self::Refused(refused) => refused.clone().into(),
            Self::Broken => wrap_failure(Reply::failed(Code::Unavailable, &self.to_string()), image),
            Self::TooLarge { .. } => {
                wrap_failure(Reply::failed(Code::ResourceExhausted, &self.to_string()), image)
            }
        }
    }
}

/// Adds the runner's text to a failure from a wrapper-server. The failure's code, details and other
/// trailers stay; a success is not changed.
pub(super) fn wrap_failure(mut reply: Reply, image: &str) -> Reply {
    let code = reply.code();
    // The code's name as grpc-go prints it.
    let name = match code {
        Code::Ok => return reply,
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    let headers = reply.status_headers_mut();
    let message = message_of(headers);
    let text =
        format!("unable to evaluate {image} with pod evaluator: rpc error: code = {name} desc = {message}");
    set_message(headers, code, &cut_message(&text));
    reply
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_grpc::{CALL_OVERHEAD, Hop, Inflight, is_shed};
    use porch_fn_pool::Reason;

    use super::*;

    const IMAGE: &str = "example.com/f:v1";

    #[test]
    fn every_error_has_its_code_and_text() {
        use Code::{DeadlineExceeded, NotFound, ResourceExhausted, Unavailable, Unknown};
        let unresolved = |source| PodError::Unresolved { constraint: ">=2".to_owned(), source };
        let rejected = PodError::Rejected;
        let not_ready = Rejection::NotReady { timeout: Duration::from_mins(1), waiting: None };
        let inflight = Inflight::new(CALL_OVERHEAD, Hop::Runner);
        let call = inflight.enter(0).unwrap();
        let too_many = PodError::Refused(inflight.enter(usize::MAX).unwrap_err());
        let too_much = PodError::Refused(call.answer(CALL_OVERHEAD + 1).unwrap_err());
        let no_match = "tag constraint \">=2\": no tag of the image's repository is a version that matches the constraint";
        let no_client = "unable to get the grpc client to the pod for example.com/f:v1: ";
        for (error, code, sheds, text) in [
            (too_many, ResourceExhausted, true, "--max-inflight-bytes"),
            (too_much, ResourceExhausted, false, "with the function's answer"),
            (
                rejected(Rejection::QueueFull { limit: 7 }),
                ResourceExhausted,
                true,
                "--max-queue-per-function",
            ),
            (
                rejected(Rejection::DeadlineExceeded { waiting: None }),
                DeadlineExceeded,
                false,
                "function evaluation timed out for",
            ),
            (rejected(Rejection::NoRoom), DeadlineExceeded, false, "--max-pods"),
            (
                rejected(Rejection::PodFailed { reason: Reason::new("name_taken", "taken") }),
                Unknown,
                false,
                no_client,
            ),
            (rejected(not_ready), DeadlineExceeded, false, "--pod-ready-timeout"),
            (unresolved(NoMatch), NotFound, false, no_match),
            (unresolved(RegistryError::NotFound), NotFound, false, "tag constraint \">=2\": "),
            (unresolved(RegistryError::Unreachable), Unknown, false, "tag constraint \">=2\": "),
            (PodError::Vanished, Unavailable, true, "vanished"),
            (PodError::Stopped, Unavailable, true, "shutting down"),
            (PodError::Broken, Unavailable, false, "desc = the connections to the function's pods were lost"),
            (PodError::TooLarge { size: 9, limit: 8 }, ResourceExhausted, false, "(9 vs. 8)"),
        ] {
            let reply = error.reply(IMAGE);
            let message = message_of(reply.status_headers());
            assert_eq!((reply.code(), is_shed(reply.status_headers())), (code, sheds), "{message}");
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn failures_of_wrappers_get_the_text_of_porch_and_successes_do_not() {
        for (code, name) in [(Code::Internal, "Internal"), (Code::Cancelled, "Canceled")] {
            let reply = wrap_failure(Reply::failed(code, "boom"), IMAGE);
            assert_eq!(reply.code(), code);
            assert_eq!(
                message_of(reply.status_headers()),
                format!(
                    "unable to evaluate {IMAGE} with pod evaluator: rpc error: code = {name} desc = boom"
                )
            );
        }
        // The header that marks a load-shed answer stays, so another pod may run the call.
        let reply = wrap_failure(Reply::shed(Code::ResourceExhausted, "64 calls already run"), IMAGE);
        assert_eq!((reply.code(), is_shed(reply.status_headers())), (Code::ResourceExhausted, true));
        let reply = wrap_failure(Reply::evaluated(Vec::new().into_iter().collect(), "".into()), IMAGE);
        assert_eq!(message_of(reply.status_headers()), "");
    }
}
