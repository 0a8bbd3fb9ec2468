//! A function's process group, from its start to its end.
//!
//! The leader is reaped only after the group was killed. As long as it is a zombie, no other
//! process or group gets its number, so the signal reaches no other process. The leader's exit is
//! read without reaping the leader, from a pidfd if the call must wait for the exit.

use std::io;
use std::os::fd::AsFd as _;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::Interest;
use tokio::runtime::Handle;

use super::pipes::{Pipes, watch};
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

struct Leader {
    child: Child,
    /// The leader's number, which is the group's as well.
    pgid: Pid,
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
        // From here on, dropping the group ends the process.
        let pipes = Pipes::of(&mut child);
        let group = Self { leader: Some(Leader { child, pgid, call }), runtime: Handle::current() };
        Ok((group, pipes.map_err(failed("opening the function's pipes"))?))
    }

    /// Waits until the leader has exited, without reaping it.
    pub(super) async fn leader_exit(&self) -> io::Result<()> {
        match &self.leader {
            Some(leader) => leader.exited().await,
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
                if leader.exited().await.is_ok() && leader.child.wait().is_ok() {
                    leader.call.end(&Handle::current());
                }
            });
        }
    }
}

// === impl Leader ===

impl Leader {
    /// Waits until the leader has exited, without reaping it.
    async fn exited(&self) -> io::Result<()> {
        // A function usually ends right after it has closed its stdout.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if waitid(WaitId::Pid(self.pgid), options)?.is_some() {
            return Ok(());
        }
        // Readable once the leader has exited. Needs Linux 5.3.
        let pidfd = pidfd_open(self.pgid, PidfdFlags::empty())?;
        let exit = watch(pidfd.as_fd(), Interest::READABLE)?;
        exit.readable().await.map(drop)
    }
}

fn kill(pgid: Pid) {
    // The leader is an unreaped child, so the group exists. A process that changed its user
    // survives.
    if let Err(error) = rustix::process::kill_process_group(pgid, Signal::KILL) {
        tracing::debug!(pgid = pgid.as_raw_nonzero(), %error, "could not kill the function's process group");
    }
}
