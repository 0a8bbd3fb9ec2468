//! One function process per call: bytes in, bytes out, and nothing left behind.
//!
//! A call ends in one of three cases: the started process has exited and its stdout is closed; the
//! deadline has passed; or stdout exceeds its limit. Then the whole process group is killed. The
//! standard library and Tokio reap a child when they wait for it. After that, the kernel may reuse
//! the group's number, and the kill would hit another group. Therefore this module waits with a
//! pidfd (Linux 5.3), which does not reap the child.
//!
//! A descendant that leaves the group (`setsid`) is killed too if this process adopts orphans
//! ([`adopt_orphans`]). If not, the descendant outlives the call. It delays the call only if it
//! keeps stdout open.

mod group;
mod program;
mod reaper;
mod stderr;

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read as _};
use std::process::ExitStatus;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until};

use crate::go_text::go_os_error;
use group::Group;

pub use program::{Environment, Program};
pub use reaper::{adopt_orphans, collect_orphans};
pub(crate) use stderr::MARKER_LIMIT;
pub use stderr::Stderr;

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
    let (group, mut pipes) = Group::start(program)?;
    let mut stderr = Stderr::new(*limits);

    let finished = async {
        let exit = async { group.leader_exit().await.map_err(failed("waiting for the function's exit")) };
        tokio::try_join!(read_stdout(&mut pipes.stdout, limits.stdout), exit)
    };
    // The call does not wait for the end of stdin and stderr, because a process that it left behind
    // may keep these pipes open.
    let alongside = async {
        tokio::try_join!(write_stdin(pipes.stdin, stdin), read_stderr(&mut pipes.stderr, &mut stderr))?;
        pending::<Result<Infallible, RunError>>().await
    };
    let stdout = tokio::select! {
        biased;
        finished = finished => finished?.0,
        Err(failed) = alongside => return Err(failed),
        () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
            return Err(RunError::Deadline);
        }
    };

    let status = group.end().map_err(failed("reaping the function's process"))?;
    read_rest_of_stderr(pipes.stderr, &mut stderr).map_err(failed("reading the function's stderr"))?;
    Ok(Finished { status, stdout, stderr })
}

async fn write_stdin(
    mut pipe: pipe::Sender,
    chunks: impl IntoIterator<Item = Bytes>,
) -> Result<(), RunError> {
    for chunk in chunks {
        match pipe.write_all(&chunk).await {
            Ok(()) => {}
            // The function has closed its stdin, because it needs no more input.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                break;
            }
            Err(error) => return Err(failed("writing the function's stdin")(error)),
        }
    }
    Ok(())
}

async fn read_stdout(pipe: &mut pipe::Receiver, limit: usize) -> Result<Bytes, RunError> {
    // The default capacity of a pipe.
    let mut stdout = Vec::with_capacity(64 * 1024);
    // One extra byte distinguishes an output of exactly the limit from a larger output.
    let mut most = pipe.take((limit as u64).saturating_add(1));
    most.read_to_end(&mut stdout).await.map_err(failed("reading the function's stdout"))?;
    if stdout.len() > limit {
        return Err(RunError::StdoutTooLarge);
    }
    Ok(stdout.into())
}

async fn read_stderr(pipe: &mut pipe::Receiver, stderr: &mut Stderr) -> Result<(), RunError> {
    let mut buffer = Vec::with_capacity(8 * 1024);
    while pipe.read_buf(&mut buffer).await.map_err(failed("reading the function's stderr"))? > 0 {
        stderr.push(&buffer);
        buffer.clear();
    }
    Ok(())
}

/// Reads the current contents of the pipe, without waiting for a process that keeps it open.
fn read_rest_of_stderr(pipe: pipe::Receiver, stderr: &mut Stderr) -> io::Result<()> {
    // The largest pipe that a process without privileges can create. The limit is needed because a
    // process that keeps writing must not delay the end of the call.
    const MOST: u64 = 1024 * 1024;
    // Tokio would read only after its driver has reported the pipe as readable.
    let mut pipe = File::from(pipe.into_nonblocking_fd()?).take(MOST);
    let mut rest = Vec::new();
    let read = pipe.read_to_end(&mut rest);
    stderr.push(&rest);
    match read {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn failed(operation: impl Display) -> impl Fn(io::Error) -> RunError {
    move |error| RunError::Failed(format!("{operation}: {}", go_os_error(&error)))
}

#[cfg(test)]
mod tests;
