//! Finds out why a pod cannot start or has died. Callers get a fixed text without the cluster's
//! messages, so that the same fault always reads the same. The cluster's messages go to the
//! runner's log.
//!
//! The kubelet retries forever, but a caller should not wait that long. A permanent fault fails the
//! pod at once. A pull error that may be temporary, and a container that ends soon after its start,
//! fail the pod at the second attempt. With any other fault the pod stays pending until the pool's
//! timeout. A container that was healthy and is restarted in place is not a failure: the probe
//! finds out whether it serves again.

mod log_lines;
mod reasons;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodStatus,
};
use porch_fn_pool::{Phase, Reason};

use super::names;
pub(super) use log_lines::Logged;
use reasons::{advice, image, image_not_pulled, image_refused, named, not_started};

/// A container that ran for less than this time counts as not started.
const SHORT: SignedDuration = SignedDuration::from_secs(10);

/// Facts from earlier states of one pod that its current state does not contain.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Containers with a failed pull. The value is true after the container has left the state of
    /// the failed pull. The next failed pull is then the second one. A container is removed from
    /// the map when its image has been pulled.
    pulls: BTreeMap<String, bool>,
    /// Why the pod failed. A failed pod stays failed, even if the kubelet retries.
    failed: Option<Reason>,
}

/// Returns the pod's phase. `history` holds facts from the pod's earlier states.
///
/// `Running` means that the function container runs and the pod has an address; only the probe is
/// missing. `Pending` has the reason that callers read after a timeout.
pub(super) fn phase(pod: &Pod, history: &mut History) -> Phase {
    let Some(status) = &pod.status else { return Phase::Pending(None) };
    if let Some(reason) = &history.failed {
        return Phase::Failed(reason.clone());
    }
    match judge(status, has_pull_secrets(pod), history) {
        Phase::Pending(None) if is_running(status) => Phase::Running,
        Phase::Failed(reason) => {
            history.failed = Some(reason.clone());
            Phase::Failed(reason)
        }
        phase => phase,
    }
}

/// Returns `Pending(None)` if the pod has no fault.
fn judge(status: &PodStatus, pull_secrets: bool, history: &mut History) -> Phase {
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return Phase::Failed(ended(status));
    }
    let is_unschedulable = unscheduled(status).any(|(reason, _)| reason == "Unschedulable");
    let unschedulable = || {
        let text = "no node can take it: check the nodes' free resources against the function's resource requests, and the node \
                    selectors and tolerations of the pod template (--function-pod-template)";
        Reason::new("unschedulable", text)
    };
    // Judges all containers, even after a fault, because `history` counts the failed pulls of each
    // one.
    let judge = |(is_init, container): (bool, &ContainerStatus)| {
        (container.name.clone(), judge_container(container, is_init, pull_secrets, history))
    };
    let mut faults: Vec<_> = containers(status).map(judge).collect();
    faults.retain(|(_, phase)| !matches!(phase, Phase::Pending(None)));
    // Without the copy that this container makes, the function cannot start.
    if faults.iter().any(|(name, _)| name == names::WRAPPER_CONTAINER) {
        faults.retain(|(name, _)| name != names::CONTAINER);
    }
    let phases = faults.into_iter().map(|(_, phase)| phase);
    let (failed, waits): (Vec<_>, Vec<_>) = phases.partition(|phase| matches!(phase, Phase::Failed(_)));
    let first = failed.into_iter().chain(waits).next();
    first.unwrap_or_else(|| Phase::Pending(is_unschedulable.then(unschedulable)))
}

/// All containers in the order in which their faults are reported: init containers, the function,
/// other containers. `true` marks an init container, which is expected to end.
fn containers(status: &PodStatus) -> impl Iterator<Item = (bool, &ContainerStatus)> {
    let is_function = |status: &&ContainerStatus| status.name == names::CONTAINER;
    let main = || status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten().map(|status| (true, status));
    let functions = main().filter(is_function).chain(main().filter(move |status| !is_function(status)));
    init.chain(functions.map(|status| (false, status)))
}

/// Why the pod has no node, and the scheduler's explanation.
fn unscheduled(status: &PodStatus) -> impl Iterator<Item = (&str, Option<&str>)> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .filter_map(|condition| Some((condition.reason.as_deref()?, condition.message.as_deref())))
}

fn is_running(status: &PodStatus) -> bool {
    let has_address = status.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    has_address
        && status.container_statuses.iter().flatten().any(|container| {
            let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
            container.name == names::CONTAINER && (is_running || container.started == Some(true))
        })
}

/// Whether the pod has pull secrets, which the kubelet reads before it pulls.
fn has_pull_secrets(pod: &Pod) -> bool {
    let secrets = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    secrets.is_some_and(|secrets| !secrets.is_empty())
}

/// Why a pod has ended.
fn ended(status: &PodStatus) -> Reason {
    match status.reason.as_deref() {
        Some("Evicted") => {
            let text = "it was evicted because its node ran short of memory or disk: give the function resource requests in the pod \
                        template (--function-pod-template) or in --pod-cache-config";
            return Reason::new("evicted", text);
        }
        Some("DeadlineExceeded") => {
            let text = "it ran longer than activeDeadlineSeconds of the pod template: remove that field (--function-pod-template)";
            return Reason::new("active_deadline", text);
        }
        _ => {}
    }
    let mut failures = containers(status).filter_map(|(_, container)| {
        let end = terminated(container.state.as_ref())?;
        // With this reason, the kubelet has lost the container's state and invented the exit code.
        let is_known = end.reason.as_deref() != Some("ContainerStatusUnknown");
        (is_known && end.exit_code != 0).then(|| exited(&container.name, end))
    });
    failures.next().unwrap_or_else(|| match status.phase.as_deref() {
        Some("Succeeded") => Reason::new(
            "completed",
            "its containers ended by themselves: check that the container `function` of the pod template (--function-pod-template) \
             runs the wrapper-server",
        ),
        _ => Reason::new(
            "node_lost",
            "its node refused it, was shut down or was lost: retry later, and check the nodes' state and free resources",
        ),
    })
}

fn exited(container: &str, end: &ContainerStateTerminated) -> Reason {
    match end.reason.as_deref() {
        Some("OOMKilled") => Reason::new(
            "out_of_memory",
            format!(
                "{} ran out of memory: raise its memory limit in the pod template (--function-pod-template) or in --pod-cache-config",
                named(container)
            ),
        ),
        _ if never_started(end) => not_started(container),
        _ => {
            let (container, advice) = (named(container), advice(container));
            Reason::new("exited", format!("{container} ended with exit code {}: {advice}", end.exit_code))
        }
    }
}

/// Whether the runtime could not start the entrypoint. The reported start time is then invalid.
fn never_started(end: &ContainerStateTerminated) -> bool {
    matches!(end.reason.as_deref(), Some("StartError" | "ContainerCannotRun"))
}

fn was_short(end: &ContainerStateTerminated) -> bool {
    match (&end.started_at, &end.finished_at) {
        _ if never_started(end) => true,
        (Some(from), Some(to)) => to.0.duration_since(from.0) < SHORT,
        _ => false,
    }
}

fn judge_container(
    container: &ContainerStatus,
    is_init: bool,
    pull_secrets: bool,
    history: &mut History,
) -> Phase {
    let state = container.state.as_ref();
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        return judge_waiting(container, waiting, pull_secrets, history);
    }
    if state.is_some_and(|state| state.running.is_some() || state.terminated.is_some()) {
        history.pulls.remove(&container.name);
    }
    second_exit(container, is_init).map_or(Phase::Pending(None), Phase::Failed)
}

fn judge_waiting(
    container: &ContainerStatus,
    waiting: &ContainerStateWaiting,
    pull_secrets: bool,
    history: &mut History,
) -> Phase {
    let name = container.name.as_str();
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let (image, named, advice) = (image(name), named(name), advice(name));
    Phase::Failed(match reason {
        "InvalidImageName" => Reason::new(
            "invalid_image",
            format!("{image} has a reference that the cluster cannot parse: check how it is written"),
        ),
        "ErrImageNeverPull" => Reason::new(
            "never_pulled",
            format!(
                "{image} is not on the node, and its imagePullPolicy is Never: check that container in the pod template \
                 (--function-pod-template)"
            ),
        ),
        "SignatureValidationFailed" => image_refused(name),
        // A ConfigMap or Secret is missing, or the image runs as root despite `runAsNonRoot`.
        "CreateContainerConfigError" => Reason::new(
            "container_config",
            format!(
                "{named} cannot be configured: check that the ConfigMaps and Secrets of the pod template (--function-pod-template) \
                 exist in the function namespace, and that runAsNonRoot is not set for an image that runs as root"
            ),
        ),
        // Often the node is only busy: the runtime was too slow, or still holds the container's
        // name.
        "CreateContainerError" => {
            let text = "could not be created: check its command, volume mounts and security settings in the pod template \
                        (--function-pod-template)";
            return Phase::Pending(Some(Reason::new("container_not_created", format!("{named} {text}"))));
        }
        "RunContainerError" => not_started(name),
        "PostStartHookError" => {
            Reason::new("start_hook", format!("the postStart hook of {named} failed: {advice}"))
        }
        "CrashLoopBackOff" => match last_end(container) {
            Some(end) => exited(name, end),
            None => Reason::new("crash_loop", format!("{named} ends as soon as it is started: {advice}")),
        },
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => {
            let may_retry = !history.is_second_pull(name, reason);
            match refusal(waiting.message.as_deref().unwrap_or_default()) {
                // The kubelet may have pulled with old credentials or without any: it skips a
                // Secret that it cannot read within a second.
                Some(true) if pull_secrets && may_retry => {
                    return Phase::Pending(Some(image_refused(name)));
                }
                Some(_) => image_refused(name),
                None if may_retry => return Phase::Pending(Some(image_not_pulled(name))),
                None => image_not_pulled(name),
            }
        }
        _ => {
            if let Some(has_ended) = history.pulls.get_mut(name) {
                *has_ended = true;
            }
            return Phase::Pending(None);
        }
    })
}

/// The kubelet reports a crash loop only about 15 seconds after the second exit. This function
/// detects it at once.
fn second_exit(container: &ContainerStatus, is_init: bool) -> Option<Reason> {
    let end = terminated(container.state.as_ref())?;
    let before = terminated(container.last_state.as_ref())?;
    let counts = |end| was_short(end) && !is_by_design(is_init, end);
    (container.restart_count >= 1 && counts(end) && counts(before)).then(|| exited(&container.name, end))
}

fn is_by_design(is_init: bool, end: &ContainerStateTerminated) -> bool {
    is_init && end.exit_code == 0
}

/// The container's last termination, whether or not the container runs again.
fn last_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    terminated(container.state.as_ref()).or_else(|| terminated(container.last_state.as_ref()))
}

fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}

// === impl History ===

impl History {
    /// Whether the pod failed because the registry does not have the function's image or denied
    /// access to it.
    pub(super) fn image_was_refused(&self) -> bool {
        self.failed.as_ref() == Some(&image_refused(names::CONTAINER))
    }

    /// Whether the current state is the container's second failed pull. The watch may report one
    /// failed pull twice. It may also skip a failed pull and report only the back-off after it.
    fn is_second_pull(&mut self, container: &str, reason: &str) -> bool {
        let backs_off = reason == "ImagePullBackOff";
        let had_ended = self.pulls.insert(container.to_owned(), backs_off);
        had_ended == Some(true) && !backs_off
    }
}

/// Texts of registries and container runtimes for a missing image.
const NO_SUCH_IMAGE: [&str; 5] =
    [" not found ", " notfound ", " does not exist ", " manifest unknown ", " name unknown "];
/// Texts of registries and container runtimes for denied access.
const NO_ACCESS: [&str; 6] = [
    " unauthorized ",
    " unauthenticated ",
    " denied ",
    " permissiondenied ",
    " forbidden ",
    " authentication required ",
];

/// Finds a registry's refusal in a message. `Some(true)`: access was denied, maybe because
/// credentials are missing. `Some(false)`: there is no such image. `None`: no refusal. containerd
/// has one sentence for both refusals, which counts as denied access.
///
/// Only whole words match, because the image's name in the message may contain "unauthorized".
fn refusal(message: &str) -> Option<bool> {
    let mut words = String::from(" ");
    for word in message.split_whitespace() {
        words.push_str(word.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
        words.push(' ');
    }
    let mut words = words.to_ascii_lowercase();
    // This text comes from the file system, not from the registry.
    words = words.replace(" permission denied ", " ");
    let has = |refusals: &[&str]| refusals.iter().any(|refusal| words.contains(refusal));
    let is_denied = has(&NO_ACCESS);
    (is_denied || has(&NO_SUCH_IMAGE)).then_some(is_denied)
}
