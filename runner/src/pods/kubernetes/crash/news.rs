//! Messages of the kubelet and the scheduler about a pod. Each goes to the runner's log once, and
//! nowhere else.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodStatus};

use super::{containers, is_by_design, last_end, unscheduled};

/// The most log lines about one pod, without those about later restarts.
const MAX_LINES: usize = 16;
/// How many bytes of a text are kept.
pub(super) const MAX_TEXT: usize = 4096;

/// What was logged about a pod: the container, its waiting reason, and its restarts. For a
/// container that ended, the reason is empty.
#[derive(Debug, Default)]
pub(in crate::pods::kubernetes) struct Logged(BTreeMap<(Option<String>, String), i32>);

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pods::kubernetes) struct News {
    /// `None`: the line is about the pod itself.
    pub(super) container: Option<String>,
    /// The cluster's reason, such as `Error`, `OOMKilled`, `ErrImagePull` or `Unschedulable`.
    pub(super) reason: String,
    /// The cluster's explanation, or the last lines of a container that ended.
    pub(super) message: String,
    /// For a container that ended: its exit code, and its restarts before that run.
    pub(super) end: Option<(i32, i32)>,
}

// === impl Logged ===

impl Logged {
    /// Returns the lines about `pod` that were not logged yet, and marks them as logged.
    pub(in crate::pods::kubernetes) fn take_new(&mut self, pod: &Pod) -> Vec<News> {
        let mut news = news(pod);
        news.retain(|line| {
            let reason = if line.end.is_some() { "" } else { line.reason.as_str() };
            let key = (line.container.clone(), reason.to_owned());
            let restarts = line.end.map_or(0, |(_, restarts)| restarts);
            let is_new = match self.0.get(&key) {
                Some(logged) => *logged < restarts,
                None => self.0.len() < MAX_LINES,
            };
            if is_new {
                self.0.insert(key, restarts);
            }
            is_new
        });
        news
    }
}

// === impl News ===

impl News {
    pub(in crate::pods::kubernetes) fn log(&self, pod: &str) {
        let Self { container, reason, message, end } = self;
        match end {
            Some((exit_code, _)) => tracing::warn!(
                pod,
                container,
                exit_code,
                reason,
                last_lines = message,
                "a container of a function pod ended"
            ),
            None => tracing::warn!(pod, container, reason, why = message, "a function pod waits"),
        }
    }
}

/// Lines about ended containers, and about why the pod waits or died.
pub(super) fn news(pod: &Pod) -> Vec<News> {
    let Some(status) = &pod.status else { return Vec::new() };
    // Deleting a pod ends its containers, which is not logged.
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    let ends = ends(status).filter(|_| !is_deleted);
    let line = |container: Option<&str>, reason: Option<&str>, message: Option<&str>| News {
        container: container.map(str::to_owned),
        reason: last_bytes(reason),
        message: last_bytes(message),
        end: None,
    };
    let pods = unscheduled(status)
        .map(|(reason, message)| (Some(reason), message))
        .chain(status.reason.is_some().then_some((status.reason.as_deref(), status.message.as_deref())))
        .map(|(reason, message)| line(None, reason, message));
    let waits = containers(status).filter_map(|(_, container)| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        // A container that waits without a message only waits for its start.
        waiting.message.as_ref()?;
        Some(line(Some(&container.name), waiting.reason.as_deref(), waiting.message.as_deref()))
    });
    ends.chain(pods).chain(waits).collect()
}

/// The last end of each container.
fn ends(status: &PodStatus) -> impl Iterator<Item = News> {
    containers(status).filter_map(|(is_init, container)| {
        let end = last_end(container).filter(|end| !is_by_design(is_init, end))?;
        // The restart count increases when the next run starts.
        let is_up_again = container.state.as_ref().is_some_and(|state| state.running.is_some());
        let restarts = container.restart_count.saturating_sub(i32::from(is_up_again));
        let ContainerStateTerminated { exit_code, reason, message, .. } = end;
        Some(News {
            container: Some(container.name.clone()),
            reason: last_bytes(reason.as_deref()),
            message: last_bytes(message.as_deref()),
            end: Some((*exit_code, restarts)),
        })
    })
}

/// The end of a text, where its last lines are.
fn last_bytes(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    text[text.ceil_char_boundary(text.len().saturating_sub(MAX_TEXT))..].to_owned()
}
