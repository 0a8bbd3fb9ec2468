//! The container engines in whose place this program answers, and their texts: kpt's own tests look
//! for those of Docker and podman.

use std::process::ExitCode;

use clap::ValueEnum;
use porch_fn_image::Image;
use porch_fn_images::StoreError;
use porch_fn_registry::RegistryError;

use crate::output::{escaped, note};

/// Exit code of Docker for its own errors.
pub(crate) const FAILED: u8 = 125;

/// The engines whose command line kpt uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Docker,
    Nerdctl,
    Podman,
}

// === impl Engine ===

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Nerdctl => "nerdctl",
            Self::Podman => "podman",
        }
    }

    pub(crate) fn callers(self) -> &'static str {
        match self {
            Self::Docker => "kpt and kustomize",
            Self::Nerdctl | Self::Podman => "kpt",
        }
    }

    /// Reports that an image is not here, and why it cannot be pulled: kpt may not have asked for
    /// that. Returns the exit code for `run`.
    pub(crate) fn report_missing(self, image: &Image, why: Option<&StoreError>) -> ExitCode {
        let name = image.as_str();
        let text = match (self, why) {
            (Self::Docker, None) => format!("docker: Error response from daemon: No such image: {name}"),
            (Self::Docker, Some(error)) => {
                // kpt's tests look for this word, which is a registry's.
                let denied = match error {
                    StoreError::Registry(RegistryError::Credentials(_) | RegistryError::Unauthorized) => {
                        "denied: "
                    }
                    _ => "",
                };
                let (registry, path) = image.repository().split_once('/').unwrap_or_default();
                let reference = image.digest().or(image.tag()).unwrap_or_default();
                format!(
                    "docker: Error response from daemon: Head \"https://{registry}/v2/{path}/manifests/{reference}\": \
                     {denied}{error}"
                )
            }
            (Self::Podman, None) => format!("Error: {name}: image not known"),
            (Self::Podman, Some(error)) => format!("Error: initializing source docker://{name}: {error}"),
            (Self::Nerdctl, None) => format!("nerdctl: image not available: {name:?}"),
            (Self::Nerdctl, Some(error)) => format!("nerdctl: image not available: {name:?}: {error}"),
        };
        note(escaped(&text));
        ExitCode::from(if self == Self::Nerdctl { 1 } else { FAILED })
    }
}
