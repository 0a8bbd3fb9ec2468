//! The facts that checks judge. Objects and answers are kept as they came.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, ServiceSpec};
use porch_fn_status_page::Status;

use super::installation::Installation;
use super::rights::Right;
use super::running::Running;

/// Pods of a Deployment that are asked; of more, the first by name.
pub(super) const MAX_ASKED: usize = 30;

/// Everything that was asked for, once.
#[derive(Debug)]
pub(super) struct Facts {
    /// Where routers and runners are.
    pub(super) namespace: String,
    pub(super) installed: Installation,
    /// The namespace's Services, by name.
    pub(super) services: BTreeMap<String, ServiceSpec>,
    pub(super) routers: Vec<Asked<Status>>,
    /// Whether each is one of ours: Porch's own has no page that says so.
    pub(super) runners: Vec<Asked<bool>>,
    /// Where function pods are.
    pub(super) functions: String,
    /// The pods there; `Err` says why they cannot be seen.
    pub(super) function_pods: Result<Vec<Pod>, String>,
    /// Whether there are more.
    pub(super) more_function_pods: bool,
    /// The porch-servers of the namespace that may use pods there.
    pub(super) servers: Vec<Running>,
    /// The rights that the programs need, and whether they have them; `Err` says why that cannot be
    /// known.
    pub(super) rights: Result<Vec<Right>, String>,
    pub(super) template: TemplateSource,
}

/// A pod of routers or runners, and its answer.
#[derive(Debug)]
pub(super) struct Asked<T> {
    pub(super) pod: String,
    /// One of each family.
    pub(super) ips: Vec<IpAddr>,
    /// As Kubernetes has it.
    pub(super) ready: bool,
    /// `Err` says why there is none, as of those beyond [`MAX_ASKED`].
    pub(super) answer: Result<Answer<T>, String>,
}

/// Pages of an admin port.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) page: T,
    /// `/metrics`; empty when that is turned off.
    pub(super) metrics: String,
}

/// Where the template of function pods comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateSource {
    BuiltIn,
    /// Porch's `base-pod-template`.
    Object,
    /// The ConfigMap of `--function-pod-template`; what should be fixed, or why it cannot be used.
    ConfigMap(String, Result<Vec<String>, String>),
    /// It could not be looked at.
    Unknown(String),
}

/// The pods that have answered.
pub(super) fn answers<T>(asked: &[Asked<T>]) -> impl Iterator<Item = (&str, &Answer<T>)> {
    asked.iter().filter_map(|one| Some((one.pod.as_str(), one.answer.as_ref().ok()?)))
}

// === impl Facts ===

impl Facts {
    pub(super) fn router_flags(&self) -> Option<&porch_fn_router::Flags> {
        self.installed.router.as_ref()?.flags.as_ref().ok()
    }

    pub(super) fn runner_flags(&self) -> Option<&porch_fn_runner::Flags> {
        self.installed.runner.as_ref()?.flags.as_ref().ok()
    }

    /// Whether the runner that was found is Porch's own; `None` if no pod of it says.
    pub(super) fn is_original(&self) -> Option<bool> {
        if !self.installed.runner.as_ref().is_some_and(|runner| runner.may_be_original) {
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

    /// Whether Porch's own function runner runs beside ours, and needs its function pods.
    pub(super) fn needing_original(&self) -> Option<&str> {
        let mut originals = self.installed.originals.iter();
        let runs = originals.find(|original| original.workload.pods > 0 && original.starts_pods)?;
        Some(&runs.workload.name)
    }
}
