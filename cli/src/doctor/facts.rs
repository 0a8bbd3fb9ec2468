//! What the doctor goes by. Objects and answers are kept as they came: what they mean is for the checks to say.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};
use porch_fn_router::status::Status;

use super::installation::Installation;
use super::rights::Right;
use super::running::Running;

/// Everything that was asked for, once.
#[derive(Debug)]
pub(super) struct Facts {
    /// Where routers and runners are.
    pub(super) namespace: String,
    pub(super) installed: Installation,
    pub(super) services: Vec<Service>,
    pub(super) routers: Vec<Asked<RouterAnswer>>,
    pub(super) runners: Vec<Asked<RunnerAnswer>>,
    /// Where function pods are.
    pub(super) functions: String,
    /// The pods there; `Err` says why they cannot be seen.
    pub(super) function_pods: Result<Vec<Pod>, String>,
    /// Whether there are more.
    pub(super) more_function_pods: bool,
    /// The porch-servers of the namespace that may use pods there.
    pub(super) servers: Vec<Running>,
    /// What the programs may do, out of what they need; `Err` says why it cannot be known.
    pub(super) rights: Result<Vec<Right>, String>,
    pub(super) template: Template,
}

/// A pod of ours, and what it said.
#[derive(Debug)]
pub(super) struct Asked<T> {
    pub(super) pod: String,
    /// One of each family.
    pub(super) ips: Vec<IpAddr>,
    /// As Kubernetes has it.
    pub(super) ready: bool,
    pub(super) answer: Result<T, Silence>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silence {
    /// It is one too many to ask.
    NotAsked,
    /// What was in the way.
    Failed(String),
}

/// A router's pages.
#[derive(Debug)]
pub(super) struct RouterAnswer {
    pub(super) status: Status,
    /// `/metrics`; empty when that is turned off.
    pub(super) metrics: String,
}

/// A runner's pages.
#[derive(Debug)]
pub(super) struct RunnerAnswer {
    /// Whether it is one of ours.
    pub(super) ours: bool,
    /// `/metrics`; empty when that is turned off.
    pub(super) metrics: String,
}

/// What function pods are made from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Template {
    /// The one that is built in.
    BuiltIn,
    /// Porch's `base-pod-template`.
    Object,
    /// The ConfigMap of `--function-pod-template`; what should be mended, or why it cannot be used.
    ConfigMap(String, Result<Vec<String>, String>),
    /// It could not be looked at.
    Unknown(String),
}

/// Who goes by the name of Porch's own function runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Original {
    /// Nobody, or ours in its place.
    No,
    /// That itself.
    Yes,
    /// Either: no pod of it says.
    Unknown,
}

impl Facts {
    /// Whether the runner that was found is Porch's.
    pub(super) fn original(&self) -> Original {
        if !self.installed.runner.as_ref().is_some_and(|runner| runner.may_be_original) {
            return Original::No;
        }
        let asked = self.runners.iter().filter(|runner| !matches!(runner.answer, Err(Silence::NotAsked)));
        let ours: Vec<Option<bool>> =
            asked.map(|runner| runner.answer.as_ref().ok().map(|answer| answer.ours)).collect();
        if ours.contains(&Some(false)) {
            Original::Yes
        } else if ours.is_empty() || ours.contains(&None) {
            Original::Unknown
        } else {
            Original::No
        }
    }
}
