//! The process that builds a sandbox and stays its parent. It has one thread, since a process with
//! threads cannot create namespaces: it is a fresh start of the program, or the copy of a caller that
//! has one thread, too. It ends the sandbox when its caller ends.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::step;
use crate::order::{FIRST, Order, Report, TERMINATE};
use crate::{SandboxError, exit_code, handover, root, signals};

/// Exit code if there is no sandbox.
pub(crate) const FAILED: u8 = 125;

/// Builds the sandbox that the caller orders, and waits for its end. Returns its exit code.
pub(crate) fn run() -> u8 {
    let Ok(control) = handover::inherited() else { return FAILED };
    let watched = start(&control)
        .and_then(|mut first| watch(&mut first, &control).map_err(step("watch its first process")));
    match watched {
        Ok(status) => exit_code(status.code(), status.signal()),
        Err(error) => {
            Report::failed(&error).send(&control);
            FAILED
        }
    }
}

/// Starts the first process.
fn start(control: &UnixStream) -> Result<Child, SandboxError> {
    let (mut order, stdio) = handover::receive::<Order>(control).map_err(step("receive its order"))?;
    signals::unblock().map_err(step("reset its signals"))?;
    std::env::set_current_dir("/").map_err(step("enter the root folder"))?;
    // Modes of new files are exact.
    rustix::process::umask(rustix::fs::Mode::empty());
    let wait = || {
        Report::Waits.send(control);
        order.rlimits = handover::receive(control)?.0;
        Ok(())
    };
    order.user = root::build(&mut order.sandbox, wait)?;
    let mut more = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    if !order.sandbox.is_on_host_network {
        more |= CloneFlags::CLONE_NEWNET;
    }
    unshare(more).map_err(step("create its namespaces"))?;
    let spawn = || -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut first = Command::new(root::PROGRAM);
        first.arg0("porch-fn").arg(FIRST).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        first.env_clear();
        if order.rlimits.data.is_some() {
            // Memory that the allocator only reserves would count.
            first.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        }
        let child = first.spawn()?;
        let mut descriptors = vec![control.as_fd()];
        descriptors.extend(stdio.iter().map(OwnedFd::as_fd));
        handover::send(&ours, &order, &descriptors)?;
        Ok(child)
    };
    spawn().map_err(step("start its first process"))
}

/// Waits for the end of the first process. Ends it if the caller ends.
fn watch(first: &mut Child, mut control: &UnixStream) -> io::Result<ExitStatus> {
    // A process that was not waited for keeps its number, which is never 0.
    let pid = Pid::from_raw(first.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut ready = [PollFd::new(&process, PollFlags::IN), PollFd::new(&control, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        if !ready[0].revents().is_empty() {
            return first.wait();
        }
        let mut message = [0];
        let is_open = matches!(control.read(&mut message), Ok(1));
        let signal = if is_open && message == [TERMINATE] { Signal::TERM } else { Signal::KILL };
        // It may have just ended.
        let _ = pidfd_send_signal(&process, signal);
        if !is_open {
            return first.wait();
        }
    }
}
