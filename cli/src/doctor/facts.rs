//! The facts that the checks evaluate. Objects and answers are stored as received.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, ServiceSpec};
use porch_fn_status_page::Status;

use super::installation::Installation;
use super::rights::Right;
use super::running::Running;

/// Maximum number of pods that doctor queries per Deployment, in the order of their names.
pub(super) const MAX_ASKED: usize = 30;

/// All facts of one round of queries.
#[derive(Debug)]
pub(super) struct Facts {
    /// The namespace of routers and runners.
    pub(super) namespace: String,
    pub(super) installed: Installation,
    /// The namespace's Services, by name.
    pub(super) services: BTreeMap<String, ServiceSpec>,
    pub(super) routers: Vec<Asked<Status>>,
    /// [`Answer::page`] is false for Porch's own runner: that runner lacks the page that doctor
    /// requests.
    pub(super) runners: Vec<Asked<bool>>,
    /// The namespace of function pods.
    pub(super) functions: String,
    /// The pods in that namespace, or why they cannot be listed.
    pub(super) function_pods: Result<Vec<Pod>, String>,
    /// The porch-servers in `namespace` that may use pods in `functions`.
    pub(super) servers: Vec<Running>,
    /// The rights that the programs need, or why doctor cannot check them.
    pub(super) rights: Result<Vec<Right>, String>,
    pub(super) template: TemplateSource,
}

/// The pod of a router or a runner, and its answer.
#[derive(Debug)]
pub(super) struct Asked<T> {
    pub(super) pod: String,
    /// One address per IP family.
    pub(super) ips: Vec<IpAddr>,
    /// Whether Kubernetes reports the pod as ready.
    pub(super) ready: bool,
    /// The answer, or why there is none, for example because of [`MAX_ASKED`].
    pub(super) answer: Result<Answer<T>, String>,
}

/// Pages of an admin port.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) page: T,
    /// The text of `/metrics`; empty if that page is disabled.
    pub(super) metrics: String,
}

/// Where the template of function pods comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateSource {
    BuiltIn,
    /// Porch's `base-pod-template`.
    Object,
    /// The ConfigMap of `--function-pod-template`, with its warnings or its error.
    ConfigMap(String, Result<Vec<String>, String>),
    /// The source could not be read. Holds the error.
    Unknown(String),
}

/// Returns the pods that have answered, with their answers.
pub(super) fn answers<T>(asked: &[Asked<T>]) -> impl Iterator<Item = (&str, &Answer<T>)> {
    asked.iter().filter_map(|one| Some((one.pod.as_str(), one.answer.as_ref().ok()?)))
}

// === impl Facts ===

impl Facts {
    /// Returns whether the runner is Porch's own. `None`: unknown, because some pods did not
    /// answer.
    pub(super) fn is_original(&self) -> Option<bool> {
        if !self.installed.may_be_original {
            return Some(false);
        }
        let asked = self.runners.iter().take(MAX_ASKED);
        let ours: Vec<_> =
            asked.map(|runner| runner.answer.as_ref().ok().map(|answer| answer.page)).collect();
        if ours.contains(&Some(false)) {
            return Some(true);
        }
        (!ours.is_empty() && !ours.contains(&None)).then_some(false)
    }
}
