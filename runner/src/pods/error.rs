//! What a caller reads when a pod gave no answer, or the function failed in it: codes and wrapping texts are
//! the original's.

use porch_fn_grpc::{Refused, Reply, cut_message, message_of, set_message};
use porch_fn_image::ReferenceError;
use porch_fn_pool::Rejection;
use tonic::Code;

use super::backend::Unresolved;
use super::driver::AcquireError;

/// Why the pod runtime has no answer of a wrapper to pass on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodError {
    /// The image is not a reference.
    #[error("{0}")]
    Image(ReferenceError),
    /// The `tag` field's constraint stands for no image.
    #[error("tag constraint {constraint:?}: {source}")]
    Unresolved {
        /// As the caller wrote it.
        constraint: String,
        /// Why.
        source: Unresolved,
    },
    /// There is no pod for the call.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// Pods broke off while they ran it.
    #[error(
        "the function's pods broke off during this call and it is not run again: look for out-of-memory kills \
         and crashes of the function"
    )]
    Broken,
    /// Too much is held already to take the answer.
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
    /// The answer to a call of `image`, as the caller wrote it.
    pub(super) fn reply(&self, image: &str) -> Reply {
        let (code, text) = match self {
            Self::Image(error) => {
                (Code::InvalidArgument, format!("unable to evaluate {image} with pod evaluator: {error}"))
            }
            Self::Unresolved { source, .. } => {
                let code = match source {
                    Unresolved::NoMatch | Unresolved::NotFound(_) => Code::NotFound,
                    // As of a pod that cannot start.
                    Unresolved::Failed(_) => Code::Unknown,
                };
                (code, format!("unable to get the grpc client to the pod for {image}: {self}"))
            }
            Self::Acquire(AcquireError::Rejected(Rejection::DeadlineExceeded)) => {
                (Code::DeadlineExceeded, format!("function evaluation timed out for {image}: {self}"))
            }
            Self::Acquire(error) => {
                let text = format!("unable to get the grpc client to the pod for {image}: {error}");
                return match error {
                    AcquireError::Rejected(Rejection::QueueFull { .. }) => {
                        Reply::shed(Code::ResourceExhausted, &text)
                    }
                    AcquireError::Rejected(Rejection::NotReady { .. } | Rejection::NoRoom) => {
                        Reply::failed(Code::DeadlineExceeded, &text)
                    }
                    // What Go makes of an error that carries no status.
                    AcquireError::Rejected(_) => Reply::failed(Code::Unknown, &text),
                    AcquireError::Vanished | AcquireError::Stopped => Reply::shed(Code::Unavailable, &text),
                };
            }
            Self::Refused(refused) => return refused.clone().into(),
            Self::Broken => (Code::Unavailable, wrapped(image, Code::Unavailable, &self.to_string())),
            Self::TooLarge { .. } => {
                (Code::ResourceExhausted, wrapped(image, Code::ResourceExhausted, &self.to_string()))
            }
        };
        Reply::failed(code, &text)
    }
}

/// Puts the runner's words around a failure that a pod's wrapper answered. Its code, details and other
/// trailers stay; a success is not touched.
pub(super) fn wrap_failure(mut reply: Reply, image: &str) -> Reply {
    let code = reply.code();
    if code != Code::Ok {
        let headers = reply.status_headers_mut();
        let text = wrapped(image, code, &message_of(headers));
        set_message(headers, code, &cut_message(&text));
    }
    reply
}

fn wrapped(image: &str, code: Code, message: &str) -> String {
    format!(
        "unable to evaluate {image} with pod evaluator: rpc error: code = {} desc = {message}",
        go_name(code)
    )
}

/// A code as grpc-go prints it.
fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use porch_fn_grpc::{CALL_OVERHEAD, Hop, Inflight, is_shed};
    use porch_fn_pool::Reason;
    use std::time::Duration;

    const IMAGE: &str = "example.com/f:v1";

    fn unresolved(source: Unresolved) -> PodError {
        PodError::Unresolved { constraint: ">=2".to_owned(), source }
    }

    #[test]
    fn every_error_has_its_code_and_words() {
        let rejected = |error: Rejection| PodError::Acquire(AcquireError::Rejected(error));
        let inflight = Inflight::new(CALL_OVERHEAD, Hop::Runner);
        let call = inflight.enter(0).unwrap();
        let table = [
            (
                PodError::Refused(inflight.enter(usize::MAX).unwrap_err()),
                Code::ResourceExhausted,
                true,
                "--max-inflight-bytes",
            ),
            (
                PodError::Refused(call.answer(CALL_OVERHEAD + 1).unwrap_err()),
                Code::ResourceExhausted,
                false,
                "with the function's answer",
            ),
            (
                rejected(Rejection::QueueFull { limit: 7 }),
                Code::ResourceExhausted,
                true,
                "--max-queue-per-function",
            ),
            (
                rejected(Rejection::DeadlineExceeded),
                Code::DeadlineExceeded,
                false,
                "function evaluation timed out for",
            ),
            (rejected(Rejection::NoRoom), Code::DeadlineExceeded, false, "--max-pods"),
            (
                rejected(Rejection::PodFailed { reason: Reason::NameTaken }),
                Code::Unknown,
                false,
                "unable to get the grpc client to the pod for example.com/f:v1: ",
            ),
            (
                rejected(Rejection::NotReady { timeout: Duration::from_mins(1), waiting: None }),
                Code::DeadlineExceeded,
                false,
                "--pod-ready-timeout",
            ),
            (
                unresolved(Unresolved::NoMatch),
                Code::NotFound,
                false,
                "tag constraint \">=2\": no tag of its repository is a version that matches",
            ),
            (unresolved(Unresolved::NotFound("gone".to_owned())), Code::NotFound, false, "\">=2\": gone"),
            (unresolved(Unresolved::Failed("down".to_owned())), Code::Unknown, false, "\">=2\": down"),
            (PodError::Acquire(AcquireError::Vanished), Code::Unavailable, true, "vanished"),
            (PodError::Acquire(AcquireError::Stopped), Code::Unavailable, true, "shutting down"),
            (
                PodError::Broken,
                Code::Unavailable,
                false,
                "rpc error: code = Unavailable desc = the function's pods",
            ),
            (PodError::TooLarge { size: 9, limit: 8 }, Code::ResourceExhausted, false, "(9 vs. 8)"),
        ];
        for (error, code, shed, text) in table {
            let reply = error.reply(IMAGE);
            let message = message_of(reply.status_headers());
            assert_eq!(reply.code(), code, "{message}");
            assert_eq!(is_shed(reply.status_headers()), shed, "{message}");
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn a_wrappers_failure_is_wrapped_as_go_does_and_a_success_is_not() {
        let reply = wrap_failure(Reply::failed(Code::Internal, "boom"), IMAGE);
        assert_eq!(reply.code(), Code::Internal);
        assert_eq!(
            message_of(reply.status_headers()),
            "unable to evaluate example.com/f:v1 with pod evaluator: rpc error: code = Internal desc = boom"
        );
        // A wrapper that is full says that another may take the call, and that stays.
        let reply = wrap_failure(Reply::shed(Code::ResourceExhausted, "64 calls already run"), IMAGE);
        assert_eq!((reply.code(), is_shed(reply.status_headers())), (Code::ResourceExhausted, true));
        let reply = wrap_failure(Reply::evaluated(Vec::new().into_iter().collect(), "".into()), IMAGE);
        assert_eq!(message_of(reply.status_headers()), "");
    }
}
