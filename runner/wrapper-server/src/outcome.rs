//! The result of a function's call for Porch: an answer, or a status code and a text.
//!
//! Codes and texts are those of Porch's own wrapper-server, because the texts go into package
//! statuses and git. Two things differ on purpose: an empty output is an error, and a long stderr
//! is cut and does not fail the call.
//!
//! | outcome | code | text |
//! |---|---|---|
//! | exit 0, a `ResourceList` | OK | stdout byte for byte; stderr is the log |
//! | exit 0 with an `error` result | OK | the same, and a warning for our log |
//! | exit other than 0, a `ResourceList` | INTERNAL | `failed to evaluate function … with structured results: …` |
//! | any exit, anything else on stdout | INTERNAL | `failed to parse the output of function …`, and the exit of a function that failed |
//! | not started | INTERNAL | `Failed to execute function …` |
//! | too much on stdout | `RESOURCE_EXHAUSTED` | `grpc: trying to send message larger than max …` |
//! | deadline | `DEADLINE_EXCEEDED` | `context deadline exceeded` |

use bytes::Bytes;
use porch_fn_grpc::Reply;
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::go_text::{go_exit_text, go_quote};
use crate::process::{Finished, Limits, MARKER_LIMIT, RunError, Stderr};
use crate::resource_list::{self, bounded};

/// A function's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluated {
    /// The function's stdout, unchanged.
    pub resource_list: Bytes,
    /// The kept part of its stderr, cut further if stdout and stderr do not fit into one message.
    pub log: Bytes,
    /// A text for our own log: the function succeeded but reported an error.
    pub warning: Option<String>,
}

/// The type of [`judge`] and [`judge_exit`]. The arguments are the function's name in quotes, its
/// finished process, and the largest message in bytes.
pub type Judge = fn(&str, Finished, usize) -> Result<Evaluated, Status>;

/// The limits that keep an answer within a gRPC message of `max_message` bytes.
pub fn limits(max_message: usize) -> Limits {
    Limits {
        stdout: max_message.saturating_sub(FIELD_OVERHEAD),
        stderr_head: STDERR_HEAD,
        stderr_tail: STDERR_TAIL,
        join_lines: false,
    }
}

/// How much of the beginning of stderr is kept, in bytes. It contains the first error.
const STDERR_HEAD: usize = 16 * 1024;

/// How much of the end of stderr is kept, in bytes. It has the stack trace and the lines before it.
const STDERR_TAIL: usize = 48 * 1024;

/// The bytes that protobuf adds to a bytes field of up to 256 MiB: its tag and its length.
const FIELD_OVERHEAD: usize = 5;

/// How much of an image's name is quoted, in bytes. The name is the caller's input and may be long.
const IMAGE_LIMIT: usize = 1024;

/// Judges a process by its output. Of a function that succeeded, Porch reads the answer again, so
/// only the outline of its output is read.
pub fn judge(function: &str, finished: Finished, max_message: usize) -> Result<Evaluated, Status> {
    let Finished { status, stdout, stderr } = finished;
    // The results of a function that failed are in the error text, so its output is parsed.
    let check = if status.success() { resource_list::check_outline } else { resource_list::check };
    let results = match check(&stdout) {
        Ok(results) if status.success() => results,
        Ok(results) => {
            let stderr = stderr.into_text();
            return Err(Status::internal(format!(
                "failed to evaluate function {function} with structured results: {results} and stderr: {stderr}"
            )));
        }
        Err(invalid) => {
            let stderr = stderr.into_text();
            // A function that crashes or is killed often writes nothing.
            let exit = if status.success() { String::new() } else { format!(" ({})", go_exit_text(status)) };
            return Err(Status::internal(format!(
                "failed to parse the output of function {function} with stderr '{stderr}': {invalid}{exit}"
            )));
        }
    };
    let warning =
        results.has_error.then(|| format!("function {function} succeeded but reported an error: {results}"));
    Ok(evaluated(stdout, stderr, warning, max_message))
}

/// Judges a process by its exit code, like Porch's exec runtime. If the function succeeded, its
/// output is not read, but an empty output is an error. If the function failed, the text begins
/// like Porch's, with exit code and stderr. The results in the function's output follow.
pub fn judge_exit(function: &str, finished: Finished, max_message: usize) -> Result<Evaluated, Status> {
    let Finished { status, stdout, stderr } = finished;
    if !status.success() {
        let failure = not_executed(function, &go_exit_text(status), &stderr.into_text());
        return Err(match resource_list::check(&stdout) {
            Ok(results) if !results.text.is_empty() => {
                Status::internal(format!("{} with structured results: {results}", failure.message()))
            }
            _ => failure,
        });
    }
    if stdout.is_empty() {
        return Err(not_executed(function, "it wrote nothing to standard output", &stderr.into_text()));
    }
    Ok(evaluated(stdout, stderr, None, max_message))
}

/// Outputs up to this size, in bytes, are judged on the async thread. Larger outputs take
/// milliseconds and would delay other calls.
const JUDGED_INLINE: usize = 64 * 1024;

/// Turns the result of a run into the answer to the call. The run must have used [`limits`] of
/// `max_message`. Large outputs are judged in a thread for blocking work. `held` is dropped only
/// after judging, even if this future is dropped earlier.
pub async fn reply(
    judge: Judge,
    image: &str,
    ran: Result<Finished, RunError>,
    max_message: usize,
    held: impl Send + 'static,
) -> Reply {
    let function = go_quote(&bounded(image, IMAGE_LIMIT));
    let judged = match ran {
        Err(error) => Err(not_finished(&function, &error, max_message)),
        Ok(finished) if finished.stdout.len() <= JUDGED_INLINE => judge(&function, finished, max_message),
        Ok(finished) => {
            let judged = spawn_blocking(move || (judge(&function, finished, max_message), held).0).await;
            judged.unwrap_or_else(|_| Err(Status::internal("the function's output could not be judged")))
        }
    };
    match judged {
        Ok(Evaluated { resource_list, log, warning }) => {
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            Reply::evaluated(resource_list.into(), log)
        }
        Err(status) => Reply::failed(status.code(), status.message()),
    }
}

fn evaluated(stdout: Bytes, stderr: Stderr, warning: Option<String>, max_message: usize) -> Evaluated {
    let room = max_message.saturating_sub(stdout.len() + 2 * FIELD_OVERHEAD).checked_sub(MARKER_LIMIT);
    let log = room.map(|room| stderr.into_bytes(room)).unwrap_or_default();
    Evaluated { resource_list: stdout, log, warning }
}

fn not_finished(function: &str, error: &RunError, max_message: usize) -> Status {
    match error {
        RunError::Failed(reason) => not_executed(function, reason, ""),
        // The function was ended at once, so the length of its whole output is not known.
        RunError::StdoutTooLarge => Status::resource_exhausted(format!(
            "grpc: trying to send message larger than max ({} vs. {max_message}): the output of function {function} \
             is too long; raise --max-request-body-size of router, runner and wrapper-server, and Porch's \
             --max-request-body-size (--function-runner-grpc-max-message-size in v1.5), to the same value",
            max_message.saturating_add(1)
        )),
        RunError::Deadline => Status::deadline_exceeded(error.to_string()),
    }
}

fn not_executed(function: &str, reason: &str, stderr: &str) -> Status {
    Status::internal(format!("Failed to execute function {function}: {reason} ({stderr})"))
}

#[cfg(test)]
mod tests;
