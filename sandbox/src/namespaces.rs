//! Namespaces of this process. It must have one thread: a process with threads cannot create a user
//! namespace.

use std::fs;
use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Gid, Uid};
use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::error::step;
use crate::{SandboxError, UNPRIVILEGED};

/// Whether this process is root and may become [`UNPRIVILEGED`]. Who is root of a user namespace
/// without that user, as with `unshare -r`, counts as an ordinary user.
pub fn is_root() -> bool {
    // A user here, the same user above, and how many follow.
    let has_user = |line: &str| {
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&UNPRIVILEGED))
    };
    geteuid().is_root() && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.lines().any(has_user))
}

/// Enters a mount namespace, and as an ordinary user a user namespace in which that user is root.
/// `more` are further namespaces. No mount made here is visible outside, and all end with the
/// namespace's processes.
///
/// # Errors
/// The machine does not allow it.
pub fn enter(more: CloneFlags) -> Result<(), SandboxError> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let user = if is_root() { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
    unshare(CloneFlags::CLONE_NEWNS | user | more).map_err(step("create its namespaces"))?;
    if !user.is_empty() {
        // This user is root in the new namespace. Nobody else exists there.
        let map = |file: &str, text: String| fs::write(format!("/proc/self/{file}"), text);
        map("setgroups", "deny".to_owned())
            .and_then(|()| map("uid_map", format!("0 {uid} 1")))
            .and_then(|()| map("gid_map", format!("0 {gid} 1")))
            .map_err(step("map its user"))?;
    }
    mount::<str, str, str, str>(None, "/", None, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None)
        .map_err(step("make mounts private"))
}

/// Changes from root to the user and group [`UNPRIVILEGED`], for good.
///
/// # Errors
/// This process is not root.
pub fn become_unprivileged() -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Changes from root to an unprivileged user. Root makes that user root in a user namespace while this
/// process does `wait`. It may be a copy of root's: so no other process of the user may look into it,
/// not even for the moment in which it could map itself.
pub(crate) fn drop_root(wait: impl FnOnce() -> io::Result<()>) -> Result<(), SandboxError> {
    become_unprivileged()
        // By default, a change of the user does so, too.
        .and_then(|()| Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?))
        .map_err(step("change from root to an ordinary user"))?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)
        .map_err(step("create its namespaces"))?;
    wait().map_err(step("wait for its caller"))
}
