//! Texts for callers about pods that cannot start or have died: a fixed text for each fault.

use porch_fn_pool::Reason;

use crate::pods::kubernetes::names;

/// One reason for a missing image and for denied access: not all registries distinguish them.
pub(super) fn image_refused(container: &str) -> Reason {
    let text = "was not found in its registry or may not be pulled: check its name and tag, and the pull secrets of the function \
                namespace";
    Reason::new("image_refused", format!("{} {text}", image(container)))
}

pub(super) fn image_not_pulled(container: &str) -> Reason {
    let text = "cannot be pulled: check that its registry works and that the nodes reach it";
    Reason::new("image_not_pulled", format!("{} {text}", image(container)))
}

pub(super) fn not_started(container: &str) -> Reason {
    let text = format!("the entrypoint of {} could not be started: {}", named(container), advice(container));
    Reason::new("not_started", text)
}

/// Describes the container's image: the function's, or that of another container.
pub(super) fn image(container: &str) -> String {
    if container == names::CONTAINER {
        return "the function's image".to_owned();
    }
    format!("the image of {}", named(container))
}

pub(super) fn named(container: &str) -> String {
    let of_pod = if container == names::CONTAINER { "" } else { " of the function's pod" };
    format!("the container `{container}`{of_pod}")
}

/// What users should check if the container does not start.
pub(super) fn advice(container: &str) -> &'static str {
    // The function's container first runs the wrapper-server, not the function.
    if container == names::CONTAINER {
        return "check that the pod template puts a wrapper-server for the node's platform at the path in the container's command \
                (WRAPPER_SERVER_IMAGE, --function-pod-template); the runner's log has the container's last lines";
    }
    "check that container in the pod template (--function-pod-template); the runner's log has the container's last lines"
}
