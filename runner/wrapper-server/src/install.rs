//! Copies the binary from its own image into a function's container. The image has no shell and no
//! tools, so the binary copies itself:
//!
//! - With our template, a container runs [`idle`], and its postStart hook calls [`copy_to`]. The
//!   function's container starts after the hook.
//! - Porch's documented templates have an init container that calls
//!   `cp -a /wrapper-server/. DIRECTORY`. The image has this binary also under the name `cp`, and
//!   [`run_cp`] supports the options that these templates use.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use porch_fn_flags::FlagError;
use porch_fn_lifecycle::StopSignals;

/// The name of the copy. Pod templates start it.
const FILE: &str = "wrapper-server";

/// The binary acts as `cp` if it is started under this name.
pub(crate) const CP: &str = "cp";

const CP_USAGE: &str = "usage: cp [-a|-r|-R|-p] SOURCE... DESTINATION; directories are always copied whole, and \
                        permission bits of files and symbolic links are always kept";

/// Copies this executable into `directory`, executable for all users.
pub(crate) fn copy_to(directory: &Path) -> ExitCode {
    let target = directory.join(FILE);
    let copied = std::env::current_exe()
        .and_then(|executable| replace(&executable, &target))
        .and_then(|()| fs::set_permissions(&target, Permissions::from_mode(0o755)));
    let Err(error) = copied else { return ExitCode::SUCCESS };
    let _ = writeln!(
        stderr(),
        "wrapper-server: --copy-to {}: {error}; mount a writable volume there",
        directory.display()
    );
    ExitCode::FAILURE
}

/// Does nothing until SIGTERM or SIGINT.
pub(crate) fn idle() -> ExitCode {
    // A single thread uses less memory, and this process runs as long as the pod.
    let waited = tokio::runtime::Builder::new_current_thread().enable_io().build().and_then(|runtime| {
        runtime.block_on(async {
            let mut signals = StopSignals::catch()?;
            println!("wrapper-server: idle");
            signals.first(std::future::pending()).await;
            Ok(())
        })
    });
    let Err(error) = waited else { return ExitCode::SUCCESS };
    let _ = writeln!(
        stderr(),
        "wrapper-server: --idle cannot catch SIGTERM and SIGINT: {error}; raise the open file limit"
    );
    ExitCode::FAILURE
}

/// Runs the command `cp`. `args` are the arguments after the command's name.
pub(crate) fn run_cp(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (options, mut sources): (Vec<OsString>, Vec<_>) =
        args.into_iter().partition(|arg| arg.as_bytes().starts_with(b"-"));
    let is_known = |option: &OsString| option.as_bytes()[1..].iter().all(|letter| b"arRp".contains(letter));
    let Some(destination) = sources.pop().filter(|_| !sources.is_empty() && options.iter().all(is_known))
    else {
        return FlagError::usage(CP, CP_USAGE).report();
    };
    for source in sources.iter().map(Path::new) {
        let mut target = PathBuf::from(&destination);
        // `SOURCE/.` is the contents of a directory, but `file_name` would return SOURCE's name.
        let is_contents = source.as_os_str() == "." || source.as_os_str().as_bytes().ends_with(b"/.");
        if target.is_dir() && !is_contents {
            target.extend(source.file_name());
        }
        if let Err(error) = copy(source, &target) {
            let _ = writeln!(stderr(), "{CP}: {} to {}: {error}", source.display(), target.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn copy(source: &Path, target: &Path) -> io::Result<()> {
    // The whole tree is listed before the first copy, because the target may be inside of it.
    let mut tree = vec![(source.to_owned(), target.to_owned())];
    let mut listed = 0;
    while let Some((source, target)) = tree.get(listed).cloned() {
        if source.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&source)? {
                let name = entry?.file_name();
                tree.push((source.join(&name), target.join(&name)));
            }
        }
        listed += 1;
    }
    tree.iter().try_for_each(|(source, target)| copy_one(source, target))
}

fn copy_one(source: &Path, target: &Path) -> io::Result<()> {
    let metadata = source.symlink_metadata()?;
    if metadata.is_dir() {
        return fs::create_dir_all(target);
    }
    if !metadata.is_symlink() {
        return replace(source, target);
    }
    match fs::remove_file(target) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => symlink(fs::read_link(source)?, target),
    }
}

/// Copies a file with its permission bits. Replaces `target` atomically: a reader sees the old file
/// or the new one.
fn replace(source: &Path, target: &Path) -> io::Result<()> {
    let temporary = target.with_file_name(format!(".wrapper-server-{}.tmp", process::id()));
    let copied = fs::copy(source, &temporary).and_then(|_| fs::rename(&temporary, target));
    if copied.is_err() {
        // Only the first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    copied
}
