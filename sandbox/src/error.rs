//! Errors of sandboxes. Each says what to do, because most come from how the machine is set up.

use std::io;
use std::path::PathBuf;

/// Why a sandbox cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refuses a step. `advice` names the setting that allows it.
    #[error("the machine does not allow the sandbox to {step}: {source}. {advice}")]
    Refused {
        /// The step, as a verb.
        step: &'static str,
        /// The operating system's error.
        source: io::Error,
        /// What to change, on a machine like this one.
        advice: String,
    },
    /// Overlayfs cannot stack the layers here.
    #[error("the kernel cannot stack the image's layers: {0}")]
    NoOverlay(io::Error),
    /// The image's layers cannot be merged.
    #[error("the image's layers cannot be merged: {0}")]
    Merge(String),
    /// A layer or the source of a mount.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// The path on this machine.
        path: PathBuf,
        /// The operating system's error.
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
    /// The specification is malformed.
    #[error("the sandbox cannot be described: {0}")]
    Invalid(String),
    /// A step of libcontainer.
    #[error("the sandbox cannot be created: {message}. {advice}")]
    Create {
        /// libcontainer's text.
        message: String,
        /// What to change, on a machine like this one.
        advice: String,
    },
    /// The sandbox's first process cannot be watched.
    #[error("the sandbox's process cannot be watched: {0}")]
    Wait(io::Error),
}
