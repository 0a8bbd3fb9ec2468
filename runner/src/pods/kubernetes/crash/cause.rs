//! The fixed table of what callers are told about a pod that cannot start or has died. What is said comes from the pod's template
//! and the function's image alone, so that the same fault always reads the same.

use std::fmt;
use std::sync::Arc;

use porch_fn_pool::Reason;

use crate::pods::kubernetes::names;

/// What is wrong with a pod, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    /// The reference cannot be parsed.
    #[error("{} has a reference that the cluster cannot parse: check how it is written", .0.image())]
    InvalidImage(Container),
    /// Not on the node, and not to be pulled.
    #[error("{} is not on the node, and its imagePullPolicy is Never: {}", .0.image(), TEMPLATE)]
    NeverPulled(Container),
    /// The registry has no such image, or not for us; not all registries tell which.
    #[error(
        "{} was not found in its registry or may not be pulled: check its name and tag, and the pull secrets of the function namespace",
        .0.image()
    )]
    ImageRefused(Container),
    /// Any other fault of a pull.
    #[error("{} cannot be pulled: check that its registry works and that the nodes reach it", .0.image())]
    ImageNotPulled(Container),
    /// What the container refers to is missing, or it would run as root and must not.
    #[error(
        "{0} cannot be configured: check that the ConfigMaps and Secrets of the pod template (--function-pod-template) exist in the \
         function namespace, and that an image that runs as root is not held to runAsNonRoot"
    )]
    Config(Container),
    /// The container runtime refused it.
    #[error(
        "{0} could not be created: check its command, volume mounts and security settings in the pod template (--function-pod-template)"
    )]
    NotCreated(Container),
    /// Its entrypoint could not be started.
    #[error("the entrypoint of {} could not be started: {}", .0, .0.advice())]
    NotStarted(Container),
    /// Its postStart hook failed.
    #[error("the postStart hook of {} failed: {}", .0, .0.advice())]
    StartHook(Container),
    /// It ends as soon as it is started.
    #[error("{} ended with exit code {}: {}", .0, .1, .0.advice())]
    Exited(Container, i32),
    /// The same, with an exit code that is not known.
    #[error("{} ends as soon as it is started: {}", .0, .0.advice())]
    CrashLoop(Container),
    /// Killed at its memory limit.
    #[error(
        "{0} ran out of memory: raise its memory limit in the pod template (--function-pod-template) or in --pod-cache-config"
    )]
    OutOfMemory(Container),
    /// Put off its node.
    #[error(
        "it was evicted since its node ran short of memory or disk: give the function resource requests in the pod template \
         (--function-pod-template) or in --pod-cache-config"
    )]
    Evicted,
    /// Its own deadline.
    #[error(
        "it ran into the activeDeadlineSeconds of the pod template: remove them (--function-pod-template)"
    )]
    ActiveDeadline,
    /// All its containers ended well, which none should.
    #[error(
        "its containers ended by themselves: check that the container `function` of the pod template (--function-pod-template) runs \
         the wrapper-server"
    )]
    Completed,
    /// The node did not take it, or took it down.
    #[error(
        "its node refused it, was shut down or was lost: retry later, and check the nodes' state and free resources"
    )]
    NodeLost,
    /// No node takes it.
    #[error(
        "no node can take it: check the nodes' free resources against the function's resource requests, and the node selectors and \
         tolerations of the pod template (--function-pod-template)"
    )]
    Unschedulable,
}

const TEMPLATE: &str = "check that container in the pod template (--function-pod-template)";

/// Whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Container {
    /// The one that runs the function, by the template's contract.
    Function,
    /// Another one of the template.
    Other(Arc<str>),
}

// === impl Cause ===

impl From<Cause> for Reason {
    fn from(cause: Cause) -> Self {
        Self::Found { kind: cause.kind(), text: cause.to_string().into() }
    }
}

impl Cause {
    /// Its name in metrics.
    fn kind(&self) -> &'static str {
        match self {
            Self::InvalidImage(_) => "invalid_image",
            Self::NeverPulled(_) => "never_pulled",
            Self::ImageRefused(_) => "image_refused",
            Self::ImageNotPulled(_) => "image_not_pulled",
            Self::Config(_) => "container_config",
            Self::NotCreated(_) => "container_not_created",
            Self::NotStarted(_) => "not_started",
            Self::StartHook(_) => "start_hook",
            Self::Exited(..) => "exited",
            Self::CrashLoop(_) => "crash_loop",
            Self::OutOfMemory(_) => "out_of_memory",
            Self::Evicted => "evicted",
            Self::ActiveDeadline => "active_deadline",
            Self::Completed => "completed",
            Self::NodeLost => "node_lost",
            Self::Unschedulable => "unschedulable",
        }
    }
}

// === impl Container ===

impl Container {
    pub(super) fn named(name: &str) -> Self {
        if name == names::CONTAINER { Self::Function } else { Self::Other(name.into()) }
    }

    fn image(&self) -> String {
        match self {
            Self::Function => "the function's image".to_owned(),
            Self::Other(_) => format!("the image of {self}"),
        }
    }

    /// What to look at when it does not come up.
    fn advice(&self) -> &'static str {
        match self {
            // What runs there first is the wrapper-server, not the function.
            Self::Function => {
                "check that the pod template puts a wrapper-server for the node's platform where the container's command says \
                 (WRAPPER_SERVER_IMAGE, --function-pod-template); the runner's log has its last lines"
            }
            Self::Other(_) => {
                "check that container in the pod template (--function-pod-template); the runner's log has its last lines"
            }
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function => f.write_str("the container `function`"),
            Self::Other(name) => write!(f, "the container `{name}` of the function's pod"),
        }
    }
}
