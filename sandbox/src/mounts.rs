//! Binds folders, and takes rights from mounts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

const NONE: Option<&str> = None;

/// Shows an open file or folder, with all that is mounted in it, at another path.
pub(crate) fn bind(source: &impl AsFd, to: &str) -> io::Result<()> {
    Ok(mount(Some(&*path_of(source)), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?)
}

/// Adds flags to the mount at a path and to all mounts below it. Each keeps the flags that it has,
/// because a user namespace may not drop them.
pub(crate) fn restrict(at: &Path, more: MsFlags) -> io::Result<()> {
    // A descriptor's path is a link.
    let at = fs::canonicalize(at)?;
    for (place, flags) in mounts_below(&fs::read("/proc/self/mountinfo")?, &at) {
        mount(NONE, &place, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags | more, NONE)?;
    }
    Ok(())
}

/// The path by which a descriptor stands for its file.
pub fn path_of(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// The mounts at a path and below it, with their flags.
/// <https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html>
fn mounts_below(mountinfo: &[u8], at: &Path) -> Vec<(PathBuf, MsFlags)> {
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let place = PathBuf::from(unescaped(fields.next()?));
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
        place.starts_with(at).then(|| (place, options.map(flag).collect()))
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// A path without the octal numbers that stand for blanks, line feeds and backslashes.
fn unescaped(field: &[u8]) -> OsString {
    let mut path = Vec::new();
    let mut rest = field;
    while let [byte, behind @ ..] = rest {
        let number = behind
            .get(..3)
            .filter(|_| *byte == b'\\')
            .and_then(|digits| u8::from_str_radix(OsStr::from_bytes(digits).to_str()?, 8).ok());
        path.push(number.unwrap_or(*byte));
        rest = if number.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_path_keep_their_flags() {
        let mountinfo = b"21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            30 21 0:25 / /in rw,nosuid,nodev,noexec shared:9 - tmpfs tmpfs rw\n\
            31 30 0:26 / /in/a\\040b ro,noatime - tmpfs tmpfs rw\n\
            32 21 0:27 / /inside rw - tmpfs tmpfs rw\n";
        let found = mounts_below(mountinfo, Path::new("/in"));
        let first = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let second = MsFlags::MS_RDONLY | MsFlags::MS_NOATIME;
        assert_eq!(found, [("/in".into(), first), ("/in/a b".into(), second)]);
    }
}
