//! Namespaces of this process. It must have one thread: a process with threads cannot create a user
//! namespace.

use std::fs;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, getegid, geteuid};

use crate::SandboxError;
use crate::error::step;

const NONE: Option<&str> = None;

/// Enters a mount namespace, and as an ordinary user a user namespace in which that user is root.
/// `more` are further namespaces. No mount made here is visible outside, and all end with the
/// namespace's processes.
///
/// # Errors
/// The machine does not allow it.
pub(crate) fn enter(more: CloneFlags) -> Result<(), SandboxError> {
    let (uid, gid) = (geteuid(), getegid());
    let user = if uid.is_root() { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
    unshare(CloneFlags::CLONE_NEWNS | user | more).map_err(step("create its namespaces"))?;
    if !uid.is_root() {
        map_root(uid, gid)?;
    }
    mount(NONE, "/", NONE, MsFlags::MS_PRIVATE | MsFlags::MS_REC, NONE).map_err(step("make mounts private"))
}

/// [`enter`] without further namespaces, for processes that only need mounts of their own.
///
/// # Errors
/// The machine does not allow it.
pub fn enter_own_mounts() -> Result<(), SandboxError> {
    enter(CloneFlags::empty())
}

/// In a new user namespace, this user is root. Nobody else exists there.
pub(crate) fn map_root(uid: Uid, gid: Gid) -> Result<(), SandboxError> {
    let map = |file: &str, id: u32| fs::write(format!("/proc/self/{file}"), format!("0 {id} 1"));
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| map("uid_map", uid.as_raw()))
        .and_then(|()| map("gid_map", gid.as_raw()))
        .map_err(step("map its user"))
}
