//! A process's exit as an event of the runtime, without reaping the process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Becomes readable once the process has exited.
#[expect(deprecated, reason = "the successor is unsafe; every OwnedFd meets its conditions")]
pub(super) fn open(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}
