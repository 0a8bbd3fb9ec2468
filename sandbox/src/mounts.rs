//! Binds folders, and takes rights from mounts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter::successors;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::SandboxError;

const NONE: Option<&str> = None;

/// A mount of this process's namespace.
#[derive(Debug, PartialEq)]
struct Mounted {
    /// The number of the mount in which it is.
    parent: u64,
    path: PathBuf,
    flags: MsFlags,
}

/// Shows an open file or folder, with all that is mounted in it, at another path.
pub(crate) fn bind(source: &impl AsFd, to: &str) -> io::Result<()> {
    Ok(mount(Some(&*path_of(source)), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?)
}

/// Changes the flags of one mount.
pub(crate) fn remount(at: &str, flags: MsFlags) -> io::Result<()> {
    Ok(mount(NONE, at, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, NONE)?)
}

/// Adds flags to the mount of this open file or folder and to all mounts in it. Each keeps the flags
/// that it has, because a user namespace may not drop them. The numbers of mounts say which they are:
/// another process may exchange the folders on the way.
///
/// # Errors
/// A mount in it is hidden, or below a folder that this process may not enter.
pub(crate) fn restrict(top: &impl AsFd, more: MsFlags) -> io::Result<()> {
    let mounts = parse(&fs::read("/proc/self/mountinfo")?);
    let number = number_of(top)?;
    let above = mounts.get(&number).ok_or(io::ErrorKind::NotFound)?;
    remount(&path_of(top), above.flags | more)?;
    for (below, Mounted { path, flags, .. }) in mounts.iter().filter(|(it, _)| **it != number) {
        if is_in(&mounts, *below, number) {
            let found = open(path).ok().filter(|found| number_of(found).is_ok_and(|it| it == *below));
            let name = path.strip_prefix(&above.path).unwrap_or(path).display();
            let problem = format!("a file system in it, at {name}, is hidden or may not be entered");
            remount(&path_of(&found.ok_or_else(|| io::Error::other(problem))?), *flags | more)?;
        }
    }
    Ok(())
}

/// Opens a path only to refer to it.
pub(crate) fn open(path: &Path) -> Result<File, SandboxError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
    opened.map_err(|source| SandboxError::Open { path: path.to_owned(), source })
}

/// The path by which a descriptor stands for its file.
pub fn path_of(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// The number of the mount that an open file is in.
fn number_of(file: &impl AsFd) -> io::Result<u64> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// Whether a mount is this one, or in it.
fn is_in(mounts: &BTreeMap<u64, Mounted>, number: u64, top: u64) -> bool {
    // The parent of the highest is unknown or itself.
    let parent = |number: &u64| mounts.get(number).map(|it| it.parent).filter(|parent| parent != number);
    successors(Some(number), parent).any(|it| it == top)
}

/// Reads a list of mounts.
/// <https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html>
fn parse(mountinfo: &[u8]) -> BTreeMap<u64, Mounted> {
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (number, parent) = (number()?, number()?);
        let path = PathBuf::from(unescaped(fields.nth(2)?));
        let options = fields.next()?.split(|byte| *byte == b',');
        let flag = |option: &[u8]| match option {
            b"ro" => MsFlags::MS_RDONLY,
            b"nosuid" => MsFlags::MS_NOSUID,
            b"nodev" => MsFlags::MS_NODEV,
            b"noexec" => MsFlags::MS_NOEXEC,
            b"noatime" => MsFlags::MS_NOATIME,
            b"nodiratime" => MsFlags::MS_NODIRATIME,
            b"relatime" => MsFlags::MS_RELATIME,
            _ => MsFlags::empty(),
        };
        Some((number, Mounted { parent, path, flags: options.map(flag).collect() }))
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// A path without the octal numbers that stand for blanks, line feeds and backslashes.
fn unescaped(field: &[u8]) -> OsString {
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut path = parts.next().unwrap_or_default().to_vec();
    for (digits, rest) in parts.filter_map(|part| part.split_at_checked(3)) {
        path.extend(u8::from_str_radix(str::from_utf8(digits).unwrap_or_default(), 8));
        path.extend(rest);
    }
    OsString::from_vec(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_in_a_mount_are_found_by_their_parents() {
        let mountinfo = b"21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            32 30 0:26 / /in/a\\040b ro,noatime - tmpfs tmpfs rw\n\
            30 21 0:25 / /in rw,nosuid,nodev,noexec shared:9 - tmpfs tmpfs rw\n\
            33 32 0:27 / /moved rw - tmpfs tmpfs rw\n\
            34 21 0:27 / /inside rw - tmpfs tmpfs rw\n\
            9 9 0:2 / / rw - rootfs rootfs rw\n";
        let mounts = parse(mountinfo);
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOATIME;
        assert_eq!(mounts[&32], Mounted { parent: 30, path: "/in/a b".into(), flags });
        let mut found: Vec<_> = mounts.keys().copied().filter(|it| is_in(&mounts, *it, 30)).collect();
        found.sort_unstable();
        assert_eq!(found, [30, 32, 33]);
        assert!(!is_in(&mounts, 9, 30) && is_in(&mounts, 9, 9));
    }
}
