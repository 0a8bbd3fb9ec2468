//! The container engines in whose place this program answers, and their texts: kpt's own tests look
//! for those of Docker and podman.

use std::process::ExitCode;

use porch_fn_image::Image;
use porch_fn_images::StoreError;
use porch_fn_registry::RegistryError;

use crate::output::{escaped, note};

/// Exit code of Docker for its own errors.
pub(crate) const FAILED: u8 = 125;

/// The engines whose command line kpt uses. kustomize uses only Docker's.
pub(crate) const ENGINES: [&str; 3] = [DOCKER, NERDCTL, "podman"];
pub(crate) const DOCKER: &str = "docker";
pub(crate) const NERDCTL: &str = "nerdctl";

/// Reports in the words of an engine why an image cannot be had. Returns the exit code for `run`.
pub(crate) fn report_missing(engine: &str, image: &Image, why: &StoreError) -> ExitCode {
    let name = image.as_str();
    let text = match (engine, why) {
        (DOCKER, StoreError::Missing) => {
            format!("docker: Error response from daemon: No such image: {name}")
        }
        (DOCKER, _) => {
            // kpt's tests look for this word, which is a registry's.
            let denied = match why {
                StoreError::Registry(RegistryError::Credentials(_) | RegistryError::Unauthorized) => {
                    "denied: "
                }
                _ => "",
            };
            let (registry, path) = image.repository().split_once('/').unwrap_or_default();
            let reference = image.digest().or(image.tag()).unwrap_or_default();
            format!(
                "docker: Error response from daemon: Head \"https://{registry}/v2/{path}/manifests/{reference}\": \
                 {denied}{why}"
            )
        }
        (NERDCTL, StoreError::Missing) => format!("nerdctl: image not available: {name:?}"),
        (NERDCTL, _) => format!("nerdctl: image not available: {name:?}: {why}"),
        (_, StoreError::Missing) => format!("Error: {name}: image not known"),
        (_, _) => format!("Error: initializing source docker://{name}: {why}"),
    };
    note(escaped(&text));
    ExitCode::from(if engine == NERDCTL { 1 } else { FAILED })
}
