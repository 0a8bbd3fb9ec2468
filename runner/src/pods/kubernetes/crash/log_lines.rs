//! Messages of the kubelet and the scheduler about a pod. A new message goes to the runner's log and
//! to the status page, but not to callers.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodStatus};

use super::{containers, is_by_design, last_end, unscheduled};

/// How many bytes of a text are kept.
pub(super) const MAX_TEXT: usize = 4096;
/// How many bytes of a text the status page gets.
const MAX_CAUSE: usize = 700;

/// The lines about a pod's last state, identified by container, reason, and the restarts of a
/// container that ended. A line that was in the last state is not logged again.
#[derive(Debug, Default)]
pub(in crate::pods::kubernetes) struct Logged(HashSet<(Option<String>, String, Option<i32>)>);

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::pods::kubernetes) struct Line<'a> {
    /// `None`: the line is about the pod itself.
    pub(super) container: Option<&'a str>,
    /// The cluster's reason, such as `Error`, `OOMKilled`, `ErrImagePull` or `Unschedulable`.
    pub(super) reason: &'a str,
    /// The cluster's explanation, or the last lines of a container that ended.
    pub(super) message: &'a str,
    /// For a container that ended: its exit code, and its restarts before that run.
    pub(super) end: Option<(i32, i32)>,
}

// === impl Logged ===

impl Logged {
    /// Returns the lines about the pod's current state that were not in its last state.
    pub(in crate::pods::kubernetes) fn take_new<'a>(&mut self, pod: &'a Pod) -> Vec<Line<'a>> {
        let mut lines = lines(pod);
        let key = |line: &Line<'_>| {
            let restarts = line.end.map(|(_, restarts)| restarts);
            (line.container.map(str::to_owned), line.reason.to_owned(), restarts)
        };
        let last = std::mem::replace(&mut self.0, lines.iter().map(key).collect());
        lines.retain(|line| !last.contains(&key(line)));
        lines
    }
}

// === impl Line ===

impl Line<'_> {
    /// The line for the status page.
    pub(in crate::pods::kubernetes) fn cause(&self) -> String {
        let Self { container, reason, message, end } = self;
        let container = container.map_or_else(String::new, |name| format!("container {name}: "));
        let end = end.map_or_else(String::new, |(code, _)| format!(", exit code {code}"));
        let message = end_of(message, MAX_CAUSE).trim();
        let colon = if message.is_empty() { "" } else { ": " };
        format!("{container}{reason}{end}{colon}{message}")
    }

    pub(in crate::pods::kubernetes) fn log(&self, pod: &Pod) {
        let Self { container, reason, message, end } = self;
        let pod = pod.metadata.name.as_deref();
        match end {
            Some((exit_code, _)) => tracing::warn!(
                pod,
                container,
                exit_code,
                reason,
                last_lines = message,
                "a container of a function pod ended"
            ),
            None => tracing::warn!(pod, container, reason, error = message, "a function pod waits"),
        }
    }
}

/// Lines about ended containers, and about why the pod waits or died.
pub(super) fn lines(pod: &Pod) -> Vec<Line<'_>> {
    let Some(status) = &pod.status else { return Vec::new() };
    // The deletion of a pod ends its containers. Such an end is not logged.
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    let ends = ends(status).filter(|_| !is_deleted);
    let of_pod = status.reason.iter().map(|reason| (reason.as_str(), status.message.as_deref()));
    let pods = unscheduled(status).chain(of_pod).map(|(reason, message)| Line {
        container: None,
        reason,
        message: last_bytes(message),
        end: None,
    });
    let waits = containers(status).filter_map(|(_, container)| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        // A container that waits without a message only waits for its start.
        let message = waiting.message.as_deref()?;
        let reason = waiting.reason.as_deref().unwrap_or_default();
        Some(Line { container: Some(&container.name), reason, message: last_bytes(Some(message)), end: None })
    });
    ends.chain(pods).chain(waits).collect()
}

/// The last end of each container.
fn ends(status: &PodStatus) -> impl Iterator<Item = Line<'_>> {
    containers(status).filter_map(|(is_init, container)| {
        let end = last_end(container).filter(|end| !is_by_design(is_init, end))?;
        // The restart count increases when the next run starts.
        let is_up_again = container.state.as_ref().is_some_and(|state| state.running.is_some());
        let restarts = container.restart_count.saturating_sub(i32::from(is_up_again));
        let ContainerStateTerminated { exit_code, reason, message, .. } = end;
        Some(Line {
            container: Some(&container.name),
            reason: reason.as_deref().unwrap_or_default(),
            message: last_bytes(message.as_deref()),
            end: Some((*exit_code, restarts)),
        })
    })
}

/// The end of a text, where its last lines are.
fn last_bytes(text: Option<&str>) -> &str {
    end_of(text.unwrap_or_default(), MAX_TEXT)
}

fn end_of(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
