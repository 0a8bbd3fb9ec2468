//! Why a pod cannot start or has died: told to callers in the words of a fixed table, and to our log in the kubelet's.
//!
//! The kubelet tries for ever; a caller should not. So what a try cannot mend fails at once, and what may pass has two tries.
//! A container that ran well and is restarted in place is no failure: whether it serves again is for the probe to say.

mod cause;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use porch_fn_pool::Phase;

use super::names;
use cause::{Cause, Container};

/// A container whose run was shorter did not come up.
const SHORT: SignedDuration = SignedDuration::from_secs(10);
/// Failed pulls before a pod is given up, where another try may help.
const MAX_PULLS: u32 = 2;
/// Bytes of a container's last words that are kept.
const MAX_MESSAGE: usize = 4096;

/// What earlier states of one pod have shown and the present one does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// By container; only those whose image is not there yet.
    pulls: BTreeMap<String, Pulls>,
    /// A pod that failed has failed, whatever the kubelet still tries.
    failed: Option<Cause>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pulls {
    failed: u32,
    /// The last state seen was that of a failed pull, so that the same state is not counted twice.
    counted: bool,
}

/// The end of one run of a container, for the runner's log: nothing of it is for callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// The container.
    pub(crate) container: String,
    /// As the container runtime reports it.
    pub(crate) exit_code: i32,
    /// The kubelet's word for it, such as `Error` or `OOMKilled`.
    pub(crate) reason: String,
    /// Its last lines, as far as the kubelet kept them.
    pub(crate) message: String,
    /// Restarts before the run that ended: it tells one end from the next.
    pub(crate) restarts: i32,
}

/// What the cluster says about a pod that does not start, for the runner's log: nothing of it is for callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// The container; `None` is the pod itself.
    pub(crate) container: Option<String>,
    /// The kubelet's or scheduler's word for it, such as `ErrImagePull` or `Unschedulable`.
    pub(crate) reason: String,
    /// Its explanation.
    pub(crate) message: String,
}

/// One container of a pod with what its state means depends on.
#[derive(Clone, Copy)]
struct Seen<'a> {
    status: &'a ContainerStatus,
    /// It ends by design.
    init: bool,
}

/// How far the pod has come. `tries` holds what its earlier states showed.
///
/// The pool asks no more of `Running` than that there is nothing to wait for but the probe: the function container runs and the
/// pod has an address. Until then it is `Pending`, whose reason is said if time runs out.
pub(crate) fn phase(pod: &Pod, tries: &mut Tries) -> Phase {
    let Some(status) = &pod.status else { return Phase::Pending(None) };
    if tries.failed.is_none() {
        match judge(status, has_pull_secrets(pod), tries) {
            Judgement::Failed(cause) => tries.failed = Some(cause),
            Judgement::Waits(cause) => return Phase::Pending(Some(cause.into())),
            Judgement::Fine => {}
        }
    }
    match &tries.failed {
        Some(cause) => Phase::Failed(cause.clone().into()),
        None if runs(status) => Phase::Running,
        None => Phase::Pending(None),
    }
}

/// The ends of containers that the pod's state still tells, the last one of each.
pub(crate) fn crashes(pod: &Pod) -> Vec<Crash> {
    // A pod that is deleted ends its containers: that is no news.
    let Some(status) = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
        return Vec::new();
    };
    containers(status).filter_map(Seen::crash).collect()
}

/// What the cluster says about whatever the pod waits for or died of.
pub(crate) fn complaints(pod: &Pod) -> Vec<Complaint> {
    let Some(status) = &pod.status else { return Vec::new() };
    let text = |text: &Option<String>| last_bytes(text.as_deref().unwrap_or_default());
    let unscheduled = status.conditions.iter().flatten().filter(|condition| {
        condition.type_ == "PodScheduled" && condition.status == "False" && condition.reason.is_some()
    });
    let mut complaints: Vec<_> = unscheduled
        .map(|condition| (&condition.reason, &condition.message))
        .chain(status.reason.is_some().then_some((&status.reason, &status.message)))
        .map(|(reason, message)| Complaint { container: None, reason: text(reason), message: text(message) })
        .collect();
    complaints.extend(containers(status).filter_map(|seen| {
        let waiting = seen.status.state.as_ref()?.waiting.as_ref()?;
        // Without a message it only waits its turn.
        waiting.message.as_ref()?;
        Some(Complaint {
            container: Some(seen.status.name.clone()),
            reason: text(&waiting.reason),
            message: text(&waiting.message),
        })
    }));
    complaints
}

enum Judgement {
    Failed(Cause),
    Waits(Cause),
    Fine,
}

fn judge(status: &PodStatus, pull_secrets: bool, tries: &mut Tries) -> Judgement {
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return Judgement::Failed(ended(status));
    }
    let mut waits = None;
    let mut failed = None;
    // All are looked at, since each has its own count of tries.
    for seen in containers(status) {
        match seen.judge(pull_secrets, tries) {
            Judgement::Failed(cause) => failed = failed.or(Some(cause)),
            Judgement::Waits(cause) => waits = waits.or(Some(cause)),
            Judgement::Fine => {}
        }
    }
    let waits = waits.or_else(|| unschedulable(status).then_some(Cause::Unschedulable));
    match (failed, waits) {
        (Some(cause), _) => Judgement::Failed(cause),
        (None, Some(cause)) => Judgement::Waits(cause),
        (None, None) => Judgement::Fine,
    }
}

/// All containers, in the order in which they are blamed: those that the others wait for, the function, the rest.
fn containers(status: &PodStatus) -> impl Iterator<Item = Seen<'_>> {
    let function = |status: &&ContainerStatus| status.name == names::CONTAINER;
    let main = || status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten().map(|status| Seen { status, init: true });
    let functions = main().filter(function).chain(main().filter(move |status| !function(status)));
    init.chain(functions.map(|status| Seen { status, init: false }))
}

fn runs(status: &PodStatus) -> bool {
    let has_address = status.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    has_address
        && status.container_statuses.iter().flatten().any(|container| {
            let running = container.state.as_ref().is_some_and(|state| state.running.is_some());
            container.name == names::CONTAINER && (running || container.started == Some(true))
        })
}

/// Whether the kubelet has credentials to look for before it pulls.
fn has_pull_secrets(pod: &Pod) -> bool {
    let secrets = pod.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    secrets.is_some_and(|secrets| !secrets.is_empty())
}

fn unschedulable(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })
}

/// Why a pod is over.
fn ended(status: &PodStatus) -> Cause {
    match status.reason.as_deref() {
        Some("Evicted") => return Cause::Evicted,
        Some("DeadlineExceeded") => return Cause::ActiveDeadline,
        _ => {}
    }
    let mut failures = containers(status).filter_map(|seen| {
        let end = seen.status.state.as_ref()?.terminated.as_ref()?;
        // The kubelet lost sight of it: the exit code is made up.
        let known = end.reason.as_deref() != Some("ContainerStatusUnknown");
        (known && end.exit_code != 0).then(|| (seen.container(), end))
    });
    match failures.next() {
        Some((container, end)) => exited(container, end),
        None if status.phase.as_deref() == Some("Succeeded") => Cause::Completed,
        None => Cause::NodeLost,
    }
}

fn exited(container: Container, end: &ContainerStateTerminated) -> Cause {
    match end.reason.as_deref() {
        Some("OOMKilled") => Cause::OutOfMemory(container),
        _ if never_started(end) => Cause::NotStarted(container),
        _ => Cause::Exited(container, end.exit_code),
    }
}

/// The runtime could not even start the entrypoint; it then gives no true start time.
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

// === impl Seen ===

impl<'a> Seen<'a> {
    fn container(self) -> Container {
        Container::named(&self.status.name)
    }

    fn judge(self, pull_secrets: bool, tries: &mut Tries) -> Judgement {
        let state = self.status.state.as_ref();
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let message = waiting.message.as_deref().unwrap_or_default();
            return self.judge_waiting(reason, message, pull_secrets, tries);
        }
        if state.is_some_and(|state| state.running.is_some() || state.terminated.is_some()) {
            tries.pulls.remove(&self.status.name);
        }
        self.second_exit().map_or(Judgement::Fine, Judgement::Failed)
    }

    fn judge_waiting(self, reason: &str, message: &str, pull_secrets: bool, tries: &mut Tries) -> Judgement {
        let container = self.container();
        Judgement::Failed(match reason {
            "InvalidImageName" => Cause::InvalidImage(container),
            "ErrImageNeverPull" => Cause::NeverPulled(container),
            "SignatureValidationFailed" => Cause::ImageRefused(container),
            "CreateContainerConfigError" => Cause::Config(container),
            // Often only a busy node: the runtime was too slow, or still holds the name.
            "CreateContainerError" => return Judgement::Waits(Cause::NotCreated(container)),
            "RunContainerError" => Cause::NotStarted(container),
            "PostStartHookError" => Cause::StartHook(container),
            "CrashLoopBackOff" => match self.last_end() {
                Some(end) => exited(container, end),
                None => Cause::CrashLoop(container),
            },
            "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => {
                let another_try = tries.count_pull(&self.status.name, reason) < MAX_PULLS;
                match refusal(message) {
                    // The kubelet may have pulled with credentials from before a rotation, or without any: a Secret that it
                    // cannot read within a second it leaves out.
                    Some(Refusal::NoAccess) if pull_secrets && another_try => {
                        return Judgement::Waits(Cause::ImageRefused(container));
                    }
                    Some(Refusal::NoSuchImage | Refusal::NoAccess) => Cause::ImageRefused(container),
                    None if another_try => return Judgement::Waits(Cause::ImageNotPulled(container)),
                    None => Cause::ImageNotPulled(container),
                }
            }
            _ => {
                if let Some(pulls) = tries.pulls.get_mut(&self.status.name) {
                    pulls.counted = false;
                }
                return Judgement::Fine;
            }
        })
    }

    /// The kubelet says that a container crashes in a loop only some 15 seconds after the second exit; this says it at once.
    fn second_exit(self) -> Option<Cause> {
        let end = self.status.state.as_ref()?.terminated.as_ref()?;
        let before = self.status.last_state.as_ref()?.terminated.as_ref()?;
        let counts = |end| was_short(end) && !self.by_design(end);
        (self.status.restart_count >= 1 && counts(end) && counts(before))
            .then(|| exited(self.container(), end))
    }

    fn by_design(self, end: &ContainerStateTerminated) -> bool {
        self.init && end.exit_code == 0
    }

    /// The last end of the container, be it down now or up again.
    fn last_end(self) -> Option<&'a ContainerStateTerminated> {
        let of = |state: &'a Option<k8s_openapi::api::core::v1::ContainerState>| {
            state.as_ref().and_then(|state| state.terminated.as_ref())
        };
        of(&self.status.state).or_else(|| of(&self.status.last_state))
    }

    fn crash(self) -> Option<Crash> {
        let end = self.last_end().filter(|end| !self.by_design(end))?;
        // The count goes up when the next run begins.
        let up_again = self.status.state.as_ref().is_some_and(|state| state.running.is_some());
        Some(Crash {
            container: self.status.name.clone(),
            exit_code: end.exit_code,
            reason: last_bytes(end.reason.as_deref().unwrap_or_default()),
            message: last_bytes(end.message.as_deref().unwrap_or_default()),
            restarts: self.status.restart_count.saturating_sub(i32::from(up_again)),
        })
    }
}

// === impl Tries ===

impl Tries {
    /// The pod failed since its registry has no such image as the function's, or not for us.
    pub(crate) fn image_was_refused(&self) -> bool {
        matches!(self.failed, Some(Cause::ImageRefused(Container::Function)))
    }

    /// How many pulls of the container's image have failed, this state included.
    fn count_pull(&mut self, container: &str, reason: &str) -> u32 {
        let pulls = self.pulls.entry(container.to_owned()).or_default();
        let backs_off = reason == "ImagePullBackOff";
        // The state of the failed pull that it backs off from may not have been seen.
        if pulls.failed == 0 || (!backs_off && !pulls.counted) {
            pulls.failed = pulls.failed.saturating_add(1);
        }
        pulls.counted = !backs_off;
        pulls.failed
    }
}

/// Why a registry does not give an image, as far as it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NoSuchImage,
    NoAccess,
}

/// What registries and container runtimes say about an image that is not there, word by word.
const NO_SUCH_IMAGE: [&str; 5] =
    [" not found ", " notfound ", " does not exist ", " manifest unknown ", " name unknown "];
/// And about one that is not for us.
const NO_ACCESS: [&str; 6] = [
    " unauthorized ",
    " unauthenticated ",
    " denied ",
    " permissiondenied ",
    " forbidden ",
    " authentication required ",
];

/// How the registry refused the image, if it answered. With the same credentials another try would be refused as well.
///
/// Whole words only: the message quotes the image's name, which may contain any of them.
fn refusal(message: &str) -> Option<Refusal> {
    let mut words = String::from(" ");
    for word in message.split_whitespace() {
        words.push_str(word.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
        words.push(' ');
    }
    let mut words = words.to_ascii_lowercase();
    // The file system's words, not the registry's.
    words = words.replace(" permission denied ", " ");
    let says = |refusals: &[&str]| refusals.iter().any(|refusal| words.contains(refusal));
    // containerd has one sentence for both: access is denied, or the repository does not exist.
    if says(&NO_ACCESS) {
        return Some(Refusal::NoAccess);
    }
    says(&NO_SUCH_IMAGE).then_some(Refusal::NoSuchImage)
}

/// The end of a text, where its last lines are.
fn last_bytes(text: &str) -> String {
    text[text.ceil_char_boundary(text.len().saturating_sub(MAX_MESSAGE))..].to_owned()
}

#[cfg(test)]
mod tests;
