//! One function process per call: bytes in, bytes out, and nothing left behind.
//!
//! A call ends when the started process has exited and its stdout is at its end, at the deadline,
//! or when stdout exceeds its limit. Then the whole process group is killed. The standard library
//! and Tokio reap a child as soon as it exits, and then the kernel may reuse the number of its
//! group. Therefore this module uses a pidfd (Linux 5.3).
//!
//! A descendant that leaves the group (`setsid`) is killed too if this process adopts orphans
//! ([`adopt_orphans`]). Otherwise it outlives the call. It cannot delay a call, unless it keeps
//! stdout open.

mod group;
mod program;
mod reaper;
mod stderr;

use std::borrow::Cow;
use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use bytes::{BufMut as _, Bytes};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::go_text::go_os_error;
use group::Group;

pub use program::{Environment, LookupError, Program};
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
    /// There is no such program.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Stdout grew past its limit; the process was ended at once.
    #[error("the function wrote more than {limit} bytes to stdout; raise --max-request-body-size")]
    StdoutTooLarge {
        /// [`Limits::stdout`].
        limit: usize,
    },
    /// The deadline passed; the process was ended.
    #[error("context deadline exceeded")]
    Deadline,
    /// The system refused to start the program, or an operation on a pipe or the process failed.
    #[error("{operation}: {}", go_os_error(source))]
    Io {
        /// The operation that failed.
        operation: Cow<'static, str>,
        /// The system's reason.
        source: io::Error,
    },
}

/// Runs `program` once, with the chunks of `stdin` as its input.
///
/// It is not an error if the program does not read its input. After the deadline, this starts no
/// process. Dropping the future kills the process group; a task on the current runtime reaps it.
///
/// # Panics
///
/// Outside a Tokio runtime with I/O and time enabled.
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
        let exit = async { group.leader_exit().await.map_err(io_error("waiting for the function's exit")) };
        tokio::try_join!(read_stdout(&mut pipes.stdout, limits.stdout), exit)
    };
    // The ends of stdin and stderr do not end a call, because a process left behind may keep these
    // pipes open.
    let alongside = async {
        tokio::try_join!(write_stdin(pipes.stdin, stdin), read_stderr(&mut pipes.stderr, &mut stderr))?;
        pending::<Result<Infallible, RunError>>().await
    };
    let stdout = tokio::select! {
        biased;
        finished = finished => finished?.0,
        Err(failed) = alongside => return Err(failed),
        () = passed(deadline) => return Err(RunError::Deadline),
    };

    let status = group.end().map_err(io_error("reaping the function's process"))?;
    read_rest_of_stderr(pipes.stderr, &mut stderr).map_err(io_error("reading the function's stderr"))?;
    Ok(Finished { status, stdout, stderr })
}

async fn write_stdin(
    mut pipe: pipe::Sender,
    chunks: impl IntoIterator<Item = Bytes>,
) -> Result<(), RunError> {
    for chunk in chunks {
        match pipe.write_all(&chunk).await {
            Ok(()) => {}
            // The function has closed its stdin, because it needs no more.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                break;
            }
            Err(error) => return Err(io_error("writing the function's stdin")(error)),
        }
    }
    Ok(())
}

async fn read_stdout(pipe: &mut pipe::Receiver, limit: usize) -> Result<Bytes, RunError> {
    const FIRST: usize = 64 * 1024;
    // One extra byte distinguishes an output of exactly the limit from a larger output.
    let most = limit.saturating_add(1);
    let mut stdout = Vec::new();
    loop {
        if stdout.len() == stdout.capacity() {
            let capacity = stdout.len().saturating_mul(2).max(FIRST).min(most);
            stdout.reserve_exact(capacity - stdout.len());
        }
        let spare = stdout.capacity() - stdout.len();
        let read = pipe.read_buf(&mut (&mut stdout).limit(spare)).await;
        if read.map_err(io_error("reading the function's stdout"))? == 0 {
            return Ok(stdout.into());
        }
        if stdout.len() > limit {
            return Err(RunError::StdoutTooLarge { limit });
        }
    }
}

async fn read_stderr(pipe: &mut pipe::Receiver, stderr: &mut Stderr) -> Result<(), RunError> {
    let mut buffer = Vec::with_capacity(STDERR_BUFFER);
    while pipe.read_buf(&mut buffer).await.map_err(io_error("reading the function's stderr"))? > 0 {
        stderr.push(&buffer);
        buffer.clear();
    }
    Ok(())
}

/// Reads the current contents of the pipe, without waiting for a process that keeps it open.
fn read_rest_of_stderr(pipe: pipe::Receiver, stderr: &mut Stderr) -> io::Result<()> {
    // The largest capacity of a pipe without privileges: a process that writes on must not delay
    // this.
    const MOST: u64 = 1024 * 1024;
    // Tokio would read only after its driver has reported the pipe as readable.
    let mut rest = File::from(pipe.into_nonblocking_fd()?).take(MOST);
    let mut buffer = [0; STDERR_BUFFER];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => stderr.push(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const STDERR_BUFFER: usize = 8 * 1024;

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Becomes readable once the process has exited. Does not reap it.
#[expect(deprecated, reason = "the successor is unsafe; every OwnedFd meets its conditions")]
fn pidfd(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}

fn io_error(operation: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { operation: operation.into(), source }
}

#[cfg(test)]
mod tests;
