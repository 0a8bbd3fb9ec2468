//! A function's process group, from its start to its end.
//!
//! The leader is reaped only after the group was killed. As long as it is a zombie, no other
//! process or group gets its number, so the signal reaches no other process. The leader's exit is
//! read from a pidfd, which does not reap the leader.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

use super::reaper::InFlight;
use super::{Program, RunError, failed};

/// A running process group. Dropping it kills every process in it, and spawns a task that reaps the
/// leader.
pub(super) struct Group {
    /// `None` once the leader is being reaped.
    leader: Option<Leader>,
    /// Runs the reaping task: the drop may happen outside of the runtime.
    runtime: Handle,
}

/// Our ends of the leader's pipes.
pub(super) struct Pipes {
    pub(super) stdin: pipe::Sender,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

struct Leader {
    child: Child,
    /// The leader's number, which is the group's as well.
    pgid: Pid,
    /// Readable once the leader has exited.
    pidfd: AsyncFd<OwnedFd>,
    call: InFlight,
}

// === impl Group ===

impl Group {
    /// Starts `program` as the leader of a new group.
    pub(super) fn start(program: &Program) -> Result<(Self, Pipes), RunError> {
        let mut command = program.command()?;
        let call = InFlight::begin(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("fork/exec {}", command.get_program().display()))(error))?;
        let pgid = Pid::from_child(&child);
        match attach(&mut child, pgid) {
            Ok((pidfd, pipes)) => {
                let leader = Leader { child, pgid, pidfd, call };
                Ok((Self { leader: Some(leader), runtime: Handle::current() }, pipes))
            }
            Err(error) => {
                kill(pgid);
                // The process was just killed, so this wait is short.
                let _ = child.wait();
                Err(failed("watching the function's process (needs Linux 5.3 or newer)")(error))
            }
        }
    }

    /// Waits until the leader has exited, without reaping it.
    pub(super) async fn leader_exit(&self) -> io::Result<()> {
        match &self.leader {
            Some(leader) => leader.pidfd.readable().await.map(|_ready| ()),
            None => Ok(()),
        }
    }

    /// Kills what is left of the group and reaps the leader, which must have exited.
    pub(super) fn end(mut self) -> io::Result<ExitStatus> {
        // Never fails: only `end` and `drop` take the leader, and no code runs on the group after
        // them.
        let Some(mut leader) = self.leader.take() else { return Err(io::ErrorKind::NotFound.into()) };
        kill(leader.pgid);
        let status = leader.child.wait()?;
        leader.call.end(&self.runtime);
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(mut leader) = self.leader.take() {
            kill(leader.pgid);
            // A killed process takes a moment to die. A task waits for its exit and reaps it.
            self.runtime.spawn(async move {
                if leader.pidfd.readable().await.is_ok() && leader.child.wait().is_ok() {
                    leader.call.end(&Handle::current());
                }
            });
        }
    }
}

fn attach(child: &mut Child, pid: Pid) -> io::Result<(AsyncFd<OwnedFd>, Pipes)> {
    fn piped<T: Into<OwnedFd>>(end: Option<T>) -> io::Result<OwnedFd> {
        end.map(Into::into).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
    #[expect(deprecated, reason = "the successor is unsafe; every OwnedFd meets its conditions")]
    let pidfd = AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)?;
    let pipes = Pipes {
        stdin: pipe::Sender::from_owned_fd(piped(child.stdin.take())?)?,
        stdout: pipe::Receiver::from_owned_fd(piped(child.stdout.take())?)?,
        stderr: pipe::Receiver::from_owned_fd(piped(child.stderr.take())?)?,
    };
    Ok((pidfd, pipes))
}

fn kill(pgid: Pid) {
    // The leader is an unreaped child, so the group exists. A process that changed its user
    // survives.
    if let Err(error) = rustix::process::kill_process_group(pgid, Signal::KILL) {
        tracing::debug!(pgid = pgid.as_raw_nonzero(), %error, "could not kill the function's process group");
    }
}
