//! As much of `cp` as the init containers of Porch's documented pod templates need. The image has no shell and
//! no tools; it carries this binary under that name as well, so that those templates work as they are.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{self, Path, PathBuf};
use std::process::{self, ExitCode};

use porch_fn_service::flags::FlagError;

/// The name under which the binary is `cp`.
pub(crate) const NAME: &str = "cp";

const USAGE: &str = "usage: cp [-a|-r|-R|-p] SOURCE... DESTINATION; permission bits are always kept, and \
                     symbolic links are copied as links with -a, -r and -R";

#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{0} is a directory, which needs -a or -r")]
    Directory(PathBuf),
    #[error("{0} is no file, directory or symbolic link: leave it out")]
    Kind(PathBuf),
    #[error("{0} is no directory: several sources need one")]
    NotADirectory(PathBuf),
    #[error("{from} cannot be copied into itself at {to}")]
    Itself { from: PathBuf, to: PathBuf },
}

#[derive(Debug, PartialEq, Eq)]
struct Order {
    recursive: bool,
    sources: Vec<PathBuf>,
    destination: PathBuf,
}

/// The whole process, from the arguments after its name to its exit code.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let order = match Order::parse(args) {
        Ok(order) => order,
        Err(problem) => return FlagError::usage(NAME, format!("{problem}; {USAGE}")).report(),
    };
    match order.carry_out() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Copies a file whole or not at all: whoever opens `target` meanwhile finds the old one or the new one. Keeps
/// the permission bits, unless `mode` says others.
pub(crate) fn replace(source: &Path, target: &Path, mode: Option<u32>) -> io::Result<()> {
    let directory = target.parent().unwrap_or(Path::new(""));
    let temporary = directory.join(format!(".wrapper-server-{}.tmp", process::id()));
    // Left by a container that was killed, where process ids are the same each time.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let copied = fs::copy(source, &temporary)
        .and_then(|_| {
            mode.map_or(Ok(()), |mode| fs::set_permissions(&temporary, Permissions::from_mode(mode)))
        })
        .and_then(|()| fs::rename(&temporary, target));
    if copied.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    copied
}

// === impl Order ===

impl Order {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut recursive = false;
        let mut paths = Vec::new();
        let mut options = true;
        for arg in args {
            match arg.as_bytes() {
                b"--" if options => options = false,
                [b'-', letters @ ..] if options && !letters.is_empty() => {
                    if !letters.iter().all(|letter| b"arRp".contains(letter)) {
                        return Err(format!("option {} is not known", arg.to_string_lossy()));
                    }
                    recursive |= letters.iter().any(|&letter| letter != b'p');
                }
                b"" => return Err("a path is empty".to_owned()),
                _ => paths.push(PathBuf::from(arg)),
            }
        }
        match paths.pop() {
            Some(destination) if !paths.is_empty() => Ok(Self { recursive, sources: paths, destination }),
            _ => Err("SOURCE and DESTINATION must be given".to_owned()),
        }
    }

    fn carry_out(&self) -> Result<(), CopyError> {
        let into = self.destination.is_dir();
        if !into && self.sources.len() > 1 {
            return Err(CopyError::NotADirectory(self.destination.clone()));
        }
        let destination = if into {
            // It may be a symbolic link to a directory; below it, links are not followed.
            self.destination.canonicalize().map_err(failed(&self.destination))?
        } else {
            self.destination.clone()
        };
        for source in &self.sources {
            let target = match name_in_destination(source) {
                Some(name) if into => destination.join(name),
                _ => destination.clone(),
            };
            let found = if self.recursive { source.symlink_metadata() } else { source.metadata() };
            if found.map_err(failed(source))?.is_dir() {
                if !self.recursive {
                    return Err(CopyError::Directory(source.clone()));
                }
                if is_within(&target, source) {
                    return Err(CopyError::Itself { from: source.clone(), to: target });
                }
            }
            copy(source, &target, self.recursive)?;
        }
        Ok(())
    }
}

/// Under what name `source` goes into a directory; none for its contents, as in `SOURCE/.`, which
/// [`Path::file_name`] would take for `SOURCE`.
fn name_in_destination(source: &Path) -> Option<&OsStr> {
    let bytes = source.as_os_str().as_bytes();
    let contents = bytes == b"." || bytes.ends_with(b"/.");
    source.file_name().filter(|_| !contents)
}

/// Whether copying `directory` to `target` would never end.
fn is_within(target: &Path, directory: &Path) -> bool {
    let (Ok(directory), Ok(target)) = (directory.canonicalize(), path::absolute(target)) else {
        return false;
    };
    let existing = target.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    existing.is_some_and(|existing| existing.starts_with(directory))
}

/// Its depth is bounded by the longest path that the system takes.
fn copy(source: &Path, target: &Path, recursive: bool) -> Result<(), CopyError> {
    let found = if recursive { source.symlink_metadata() } else { source.metadata() };
    let found = found.map_err(failed(source))?;
    if found.is_dir() {
        copy_directory(source, target, found.permissions())
    } else if found.is_symlink() {
        copy_link(source, target)
    } else if found.is_file() {
        replace(source, target, None).map_err(failed(target))
    } else {
        Err(CopyError::Kind(source.to_owned()))
    }
}

/// Merges into a directory that is there, whose own permission bits stay: it may be another user's volume.
fn copy_directory(source: &Path, target: &Path, permissions: Permissions) -> Result<(), CopyError> {
    let made = match DirBuilder::new().mode(0o700).create(target) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if !target.symlink_metadata().map_err(failed(target))?.is_dir() {
                return Err(failed(target)(error));
            }
            false
        }
        Err(error) => return Err(failed(target)(error)),
    };
    for entry in fs::read_dir(source).map_err(failed(source))? {
        let entry = entry.map_err(failed(source))?;
        copy(&entry.path(), &target.join(entry.file_name()), true)?;
    }
    // Last, since it may forbid writing.
    if made { fs::set_permissions(target, permissions).map_err(failed(target)) } else { Ok(()) }
}

fn copy_link(source: &Path, target: &Path) -> Result<(), CopyError> {
    let leads_to = fs::read_link(source).map_err(failed(source))?;
    match fs::remove_file(target) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(target)(error)),
        _ => (),
    }
    symlink(leads_to, target).map_err(failed(target))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CopyError {
    let path = path.to_owned();
    move |error| CopyError::Io { path, error }
}

#[cfg(test)]
mod tests;
