//! Paths of an image, resolved with the image's folder as root. No link leads out of it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat, statat};
use rustix::io::Errno;

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;
/// Largest file of an image that is read here, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Folders that the image lacks.
pub(crate) const FOLDER_MODE: u32 = 0o755;

/// Where `path` leads below `root`, without links. What does not exist is taken as it is written.
///
/// # Errors
/// A loop of links.
pub fn canonical(root: impl AsFd, path: &Path) -> io::Result<PathBuf> {
    let mut found = PathBuf::new();
    let mut rest: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            found.pop();
            continue;
        }
        found.push(&part);
        let Ok(target) = readlinkat(&root, &found, Vec::new()) else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            found.clear();
        } else {
            found.pop();
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok(found)
}

/// The names of a path, and `..`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}

/// Opens a canonical path.
///
/// # Errors
/// It does not exist, or has links.
pub fn open(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), inside)?)
}

/// The text of a file of the image, which may be anything. Empty if it is no file with text.
pub(crate) fn read_small(root: impl AsFd, path: &str) -> String {
    let read = || -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(open(&root, &canonical(&root, Path::new(path))?, flags)?);
        let mut text = String::new();
        if file.metadata()?.is_file() {
            file.take(MAX_FILE).read_to_string(&mut text)?;
        }
        Ok(text)
    };
    read().unwrap_or_default()
}

/// What of a canonical path exists: for each part of it the mode of a folder. `None` for what is
/// missing.
///
/// # Errors
/// A part is not a folder, or not a file if `is_folder` says so of the last one.
pub fn folders(root: impl AsFd, path: &Path, is_folder: bool) -> io::Result<Vec<(PathBuf, Option<u32>)>> {
    let mut found = Vec::new();
    let count = path.components().count();
    for (number, here) in path.ancestors().collect::<Vec<_>>().into_iter().rev().skip(1).enumerate() {
        let must_be_folder = number + 1 < count || is_folder;
        let mode = match statat(&root, here, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if (FileType::from_raw_mode(stat.st_mode) == FileType::Directory) == must_be_folder => {
                Some(stat.st_mode & 0o7777)
            }
            Ok(_) if must_be_folder => return Err(io::ErrorKind::NotADirectory.into()),
            Ok(_) => return Err(io::ErrorKind::IsADirectory.into()),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        found.push((here.to_owned(), mode));
    }
    Ok(found)
}

/// Creates the folders of a canonical path, and at its end an empty file or a folder.
///
/// # Errors
/// The disk, or a part of the path is not a folder.
pub fn create(root: impl AsFd, folders: &[(PathBuf, Option<u32>)], is_folder: bool) -> io::Result<()> {
    for (number, (path, mode)) in folders.iter().enumerate() {
        let Some(name) = path.file_name() else { continue };
        // Another process may exchange a folder for a link at any time.
        let above = open(&root, path.parent().unwrap_or(path), OFlags::PATH | OFlags::DIRECTORY)?;
        let created = if number + 1 < folders.len() || is_folder {
            // The mode is exact: this process has no umask.
            mkdirat(&above, name, Mode::from(mode.unwrap_or(FOLDER_MODE)))
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&above, name, flags, Mode::from(0o644)).map(drop)
        };
        match created {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_only_inside() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("usr/lib")).unwrap();
        for (name, target) in [
            ("lib", "usr/lib"),
            ("out", "/../../etc"),
            ("usr/up", "../../../lib"),
            ("dangling", "/not/here"),
            ("a", "b"),
            ("b", "a"),
        ] {
            symlink(target, at(name)).unwrap();
        }
        let root = File::open(folder.path()).unwrap();
        for (path, expected) in [
            ("/", ""),
            ("lib/x", "usr/lib/x"),
            ("/lib/../x", "usr/x"),
            ("out/passwd", "etc/passwd"),
            ("usr/up/x", "usr/lib/x"),
            ("dangling/x", "not/here/x"),
            ("../../x", "x"),
        ] {
            assert_eq!(canonical(&root, Path::new(path)).unwrap(), Path::new(expected), "{path}");
        }
        assert!(canonical(&root, Path::new("a/x")).is_err(), "a loop");
        assert!(open(&root, Path::new("lib/x"), OFlags::RDONLY).is_err());
        fs::write(at("usr/file"), "text").unwrap();
        symlink("/usr/file", at("usr/lib/passwd")).unwrap();
        assert_eq!(read_small(&root, "/lib/passwd"), "text");
        assert_eq!(read_small(&root, "usr"), "");
    }

    #[test]
    fn what_is_missing_is_created() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let root = File::open(folder.path()).unwrap();
        let folders = |path: &str, is_folder| folders(&root, Path::new(path), is_folder);
        let found = folders("a/b", true).unwrap();
        assert_eq!(found, [("a".into(), None), ("a/b".into(), None)]);
        create(&root, &found, true).unwrap();
        assert!(folders("a/b", true).unwrap().iter().all(|(_, mode)| mode.is_some()));
        create(&root, &folders("a/f", false).unwrap(), false).unwrap();
        assert!(folder.path().join("a/f").is_file());
        assert_eq!(folders("file/x", true).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(folders("a", false).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
