//! Errors of sandboxes. Each says whether the image, a flag or the machine is at fault.

use std::io;
use std::path::{Path, PathBuf};

/// Why a sandbox cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A step that every sandbox needs.
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
    /// A folder that every sandbox has, the working directory, or the target of a mount.
    #[error("the {what} {} cannot be used: {source}; {remedy}", .path.display())]
    Place {
        /// What it is.
        what: &'static str,
        /// The path in the sandbox.
        path: PathBuf,
        /// The operating system's error, or what is wrong with it.
        source: io::Error,
        /// What the user can do.
        remedy: &'static str,
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
        /// What it reported.
        text: String,
        /// Docker's exit code for such a failure.
        code: u8,
        /// Whether it was refused a step.
        is_refused: bool,
    },
}

/// A place that is not the image's.
pub(crate) const TARGET: &str = "target of a mount";

// === impl SandboxError ===

impl SandboxError {
    /// Whether the machine's settings forbid sandboxes.
    pub fn is_refused(&self) -> bool {
        match self {
            Self::Step { source, .. } => forbids(source),
            Self::Inside { is_refused, .. } => *is_refused,
            _ => false,
        }
    }

    /// Docker's exit code for such a failure: 127 and 126 for a command that does not exist or cannot
    /// be run, and 125 for all else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Inside { code, .. } => *code,
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Command { .. } => 126,
            _ => 125,
        }
    }
}

/// Whether the machine's settings forbid a step, or allow no more namespaces.
fn forbids(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::StorageFull)
}

/// Names a step that failed.
pub(crate) fn step<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> SandboxError {
    move |error| SandboxError::Step { step, source: error.into() }
}

/// A place of the sandbox that cannot be used. What is not the target of a mount is the image's.
pub(crate) fn unusable(what: &'static str, path: &Path) -> impl Fn(io::Error) -> SandboxError + use<> {
    let path = Path::new("/").join(path);
    let remedy = if what == TARGET { "see --mount" } else { "change the image" };
    move |source| SandboxError::Place { what, path: path.clone(), source, remedy }
}
