//! One function process per call: bytes in, bytes out, and nothing left behind.
//!
//! A call ends in one of three cases: the started process has exited, and its stdout is closed or a
//! second has passed; the deadline has passed; or stdout exceeds its limit. Then the whole process
//! group is killed. The
//! standard library and Tokio reap a child when they wait for it. After that, the kernel may reuse
//! the group's number, and the kill would hit another group. Therefore this module waits with a
//! pidfd (Linux 5.3), which does not reap the child.
//!
//! A descendant that leaves the group (`setsid`) is killed too if this process adopts orphans
//! ([`adopt_orphans`]). If not, the descendant outlives the call.

mod group;
mod pipes;
mod program;
mod reaper;
mod stderr;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::future::pending;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use crate::go_text::go_os_error;
use group::Group;
use pipes::{Pipes, read_rest_of_stderr, read_stderr, read_stdout, write_stdin};

pub use program::{Environment, Program};
pub use reaper::{adopt_orphans, collect_orphans};
pub(crate) use stderr::MARKER_LIMIT;
pub use stderr::Stderr;

/// How long the call waits for the end of stdout after the function has exited. Processes that end
/// with the function, such as those of a shell's pipeline, close it at once.
const LINGER: Duration = Duration::from_secs(1);

/// How much of a function's output is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest stdout; a larger one ends the call.
    pub stdout: usize,
    /// How much of the beginning of stderr is kept.
    pub stderr_head: usize,
    /// How much of the end of stderr is kept.
    pub stderr_tail: usize,
    /// Whether the lines of stderr are joined by ` | `.
    pub join_lines: bool,
}

/// A function process that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// The exit status of the started process.
    pub status: ExitStatus,
    /// The stdout of the started process and of the processes that it left running.
    pub stdout: Bytes,
    /// The kept part of stderr.
    pub stderr: Stderr,
}

/// Why a function process did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Stdout grew past its limit; the process was ended at once.
    #[error("the function wrote more to stdout than --max-request-body-size allows; raise that flag")]
    StdoutTooLarge,
    /// The deadline passed; the process was ended.
    #[error("context deadline exceeded")]
    Deadline,
    /// There is no such program, the system refused to start it, or an operation on a pipe or the
    /// process failed. The text names the failed operation and the reason.
    #[error("{0}")]
    Failed(String),
}

/// Runs `program` once, with the chunks of `stdin` as its input.
///
/// The program need not read its input. No process is started after the deadline. Dropping the
/// future kills the process group; a task on the current runtime reaps it.
///
/// # Errors
/// Why the process did not run to its end.
///
/// # Panics
///
/// If called outside a Tokio runtime with I/O and time enabled.
pub async fn run(
    program: &Program,
    stdin: impl IntoIterator<Item = Bytes>,
    limits: &Limits,
    deadline: Option<Instant>,
) -> Result<Finished, RunError> {
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(RunError::Deadline);
    }
    let (group, pipes) = Group::start(program)?;
    let stdin: VecDeque<_> = stdin.into_iter().collect();
    let expected = stdin.iter().map(Bytes::len).sum();
    pipes.expect(expected);
    let Pipes { stdin: stdin_pipe, stdout: stdout_pipe, stderr: stderr_pipe } = pipes;
    let mut stderr = Stderr::new(*limits);

    let finished = async {
        // A process that the function left behind may keep stdout open.
        let has_exited = AtomicBool::new(false);
        let exit = async || {
            group.leader_exit().await.map_err(failed("waiting for the function's exit"))?;
            has_exited.store(true, Ordering::Relaxed);
            Ok(())
        };
        let ended = async {
            exit().await?;
            sleep(LINGER).await;
            Ok(())
        };
        let stdout = read_stdout(&stdout_pipe, limits.stdout, expected, ended).await?;
        if !has_exited.load(Ordering::Relaxed) {
            exit().await?;
        }
        Ok(stdout)
    };
    // The call does not wait for the end of stdin and stderr, because a process that it left
    // behind may keep these pipes open.
    let alongside = async {
        let write =
            async { write_stdin(stdin_pipe, stdin).await.map_err(failed("writing the function's stdin")) };
        let read = async {
            let read = read_stderr(&stderr_pipe, &mut stderr).await;
            read.map_err(failed("reading the function's stderr"))
        };
        tokio::try_join!(write, read)?;
        pending::<Result<Infallible, RunError>>().await
    };
    let stdout = tokio::select! {
        biased;
        finished = finished => finished?,
        Err(failed) = alongside => return Err(failed),
        () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
            return Err(RunError::Deadline);
        }
    };

    let status = group.end().map_err(failed("reaping the function's process"))?;
    read_rest_of_stderr(stderr_pipe, &mut stderr).map_err(failed("reading the function's stderr"))?;
    Ok(Finished { status, stdout, stderr })
}

fn failed(operation: impl Display) -> impl Fn(io::Error) -> RunError {
    move |error| RunError::Failed(format!("{operation}: {}", go_os_error(&error)))
}

#[cfg(test)]
mod tests;
