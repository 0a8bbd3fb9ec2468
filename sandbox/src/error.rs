//! Errors of sandboxes. Each says whether the image, a flag or the machine is at fault. Only faults
//! of the machine come with advice on its settings.

use std::io;
use std::path::{Path, PathBuf};

/// Why a sandbox cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The machine's settings forbid a step that every sandbox needs.
    #[error("the machine does not allow the sandbox to {step}: {source}")]
    Refused {
        /// The step, as a verb.
        step: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A step failed for another reason.
    #[error("the sandbox cannot {step}: {source}")]
    Step {
        /// The step, as a verb.
        step: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// Overlayfs cannot stack the layers here.
    #[error(
        "the kernel cannot stack the image's layers in its folder: {0}; name a folder on another file system, \
         such as ext4, with --image-dir"
    )]
    NoOverlay(io::Error),
    /// A layer or the source of a mount.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// The path on this machine.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A folder that every sandbox has, or the working directory.
    #[error("the image's {what} {} cannot be used: {source}; change the image", .path.display())]
    Image {
        /// `folder`, `working directory`.
        what: &'static str,
        /// The path in the image.
        path: PathBuf,
        /// The operating system's error, or what is wrong with it.
        source: io::Error,
    },
    /// The target of a mount.
    #[error("nothing can be mounted at {}: {source}; see --mount", .path.display())]
    Mount {
        /// The path in the sandbox.
        path: PathBuf,
        /// The operating system's error, or what is wrong with it.
        source: io::Error,
    },
    /// The image's USER.
    #[error("the image's {file} has no {kind} {name:?}: name a number with --user, or add it to the image")]
    User {
        /// `user` or `group`.
        kind: &'static str,
        /// What the image or the user named.
        name: String,
        /// The file of the image.
        file: &'static str,
    },
    /// The command cannot be run.
    #[error("cannot run {name:?} of the image: {source}")]
    Command {
        /// The program.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process of the sandbox could not go on.
    #[error("{text}")]
    Inside {
        /// What it reported, with advice if the machine is at fault.
        text: String,
        /// Docker's exit code for such a failure.
        code: u8,
    },
}

/// Exit codes of Docker: for a container that does not start, and for a command that cannot be run
/// or does not exist.
const NOT_STARTED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

// === impl SandboxError ===

impl SandboxError {
    /// Docker's exit code for such a failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Inside { code, .. } => *code,
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Command { .. } => NOT_EXECUTABLE,
            _ => NOT_STARTED,
        }
    }
}

/// Names a step that failed. The machine is at fault if it forbids the step, or allows no more
/// namespaces.
pub(crate) fn step<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> SandboxError {
    move |error| {
        let source = error.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::StorageFull => {
                SandboxError::Refused { step, source }
            }
            _ => SandboxError::Step { step, source },
        }
    }
}

/// What of the image is at fault.
pub(crate) fn image(what: &'static str, path: &Path) -> impl Fn(io::Error) -> SandboxError + use<> {
    let path = Path::new("/").join(path);
    move |source| SandboxError::Image { what, path: path.clone(), source }
}

/// Nothing can be mounted at this path of the image.
pub(crate) fn mounting(path: &Path) -> impl Fn(io::Error) -> SandboxError {
    move |source| SandboxError::Mount { path: path.to_owned(), source }
}
