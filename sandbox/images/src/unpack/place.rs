//! Finds the place of an entry. Names of a layer are untrusted. They are cleaned like in Go's tools:
//! `..` ends at the root, a leading slash is dropped, and links are followed inside the root.

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};
use rustix::io::Errno;

use super::{PATH, TOO_LONG, UnpackError};

/// Most links of one path, as in Go's securejoin.
const MAX_LINKS: usize = 255;
/// Longest path, as in Linux's `PATH_MAX`, in bytes.
const MAX_PATH: usize = 4095;
/// Most folders above a file, after links were followed.
const MAX_DEPTH: usize = 256;

/// A name in a folder. The folder's path may have links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: PathBuf,
    pub(super) name: OsString,
}

/// The place that an entry names. `None`: it is the root.
pub(super) fn place(name: &[u8]) -> Result<Option<Place>, UnpackError> {
    let mut parent = PathBuf::new();
    for part in parts(name).into_iter().rev() {
        match &*part {
            b".." => drop(parent.pop()),
            part if part.contains(&0) => return Err(UnpackError::Refused("a name has a NUL")),
            part => parent.push(OsStr::from_bytes(part)),
        }
    }
    let name = parent.file_name().map(OsStr::to_owned);
    parent.pop();
    Ok(name.map(|name| Place { parent, name }))
}

/// The path without links, relative to the root. What does not exist is taken as it is written.
pub(super) fn resolve(root: BorrowedFd<'_>, path: &Path) -> Result<PathBuf, UnpackError> {
    let mut found = PathBuf::new();
    let mut rest = parts(path.as_os_str().as_bytes());
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == b".." {
            found.pop();
            continue;
        }
        found.push(OsStr::from_bytes(&part));
        match readlinkat(root, &found, Vec::new()) {
            Ok(_) if links == MAX_LINKS => return Err(PATH),
            Ok(target) => {
                links += 1;
                found.pop();
                if target.to_bytes().starts_with(b"/") {
                    found = PathBuf::new();
                }
                rest.extend(parts(target.to_bytes()));
            }
            // Not a link, or nothing.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let is_long = found.components().count() > MAX_DEPTH || found.as_os_str().len() > MAX_PATH;
    if is_long { Err(TOO_LONG) } else { Ok(found) }
}

/// Opens a folder below the root by its path without links.
pub(super) fn open_folder(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags, Mode::empty(), inside)
}

/// The names of a path, the last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').rev();
    parts.filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned() {
        for name in ["usr/bin/x", "/usr/bin/x", "./usr//bin/./x/", "../usr/lib/../bin/x", "/../usr/bin/x"] {
            let expected = Place { parent: "usr/bin".into(), name: "x".into() };
            assert_eq!(place(name.as_bytes()).unwrap(), Some(expected), "{name}");
        }
        for name in ["", "./", "/", "a/..", "../.."] {
            assert_eq!(place(name.as_bytes()).unwrap(), None, "{name}");
        }
        assert!(place(b"a\0b").is_err());
    }
}
