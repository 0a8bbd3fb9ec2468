//! What Porch's Deployments say of evaluating functions: whom they call for it, and which of them
//! run function pods themselves. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::ResourceExt;

/// Where Porch keeps function pods unless a flag says otherwise.
pub(super) const FUNCTIONS: &str = "porch-fn-system";
/// An address that stands in another object than the Deployment.
pub(super) const ELSEWHERE: &str = "(from elsewhere)";
/// Porch's largest message unless its flag says otherwise, in bytes.
const PORCH_MESSAGE: u64 = 6_291_456;
/// porch-server's flag for the address of a function runner.
const RUNNER_FLAG: &str = "function-runner";
/// The same of porch-controllers, and the address of what runs everything else.
pub(super) const RUNNER_VARIABLE: &str = "FUNCTION_RUNNER_ADDRESS";
pub(super) const EVALUATOR_VARIABLE: &str = "POD_EVALUATOR_ADDRESS";
/// No evaluator of Porch starts pods without this variable.
const WRAPPER_VARIABLE: &str = "WRAPPER_SERVER_IMAGE";
/// Flags and a port that only evaluators have which start pods.
const POD_FLAGS: [&str; 2] = ["pod-namespace", "pod-evaluator-port"];
const POD_EVALUATOR_PORT: i32 = 9447;
/// What pods are made from unless a flag says otherwise.
const BASE_TEMPLATE: &str = porch_fn_runner::pods::kubernetes::BASE_POD_TEMPLATE;
/// What Porch calls the largest message: v1.5's server, whose other flag is for its own API; its
/// controllers, now and in older versions; its server.
const MESSAGE_SIZES: [&str; 4] = [
    "function-runner-grpc-max-message-size",
    "packagerevisions.max-grpc-message-size",
    "max-grpc-message-size",
    "max-request-body-size",
];

/// An address at which a program of Porch's has functions evaluated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// Its Deployment.
    pub(super) deployment: String,
    /// The flag or variable with the address.
    pub(super) setting: &'static str,
    pub(super) address: String,
    /// Its largest message in bytes.
    pub(super) max_message: u64,
}

/// A Deployment of Porch's that starts function pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evaluator {
    pub(super) namespace: String,
    pub(super) deployment: String,
    /// Whether it is porch-server; else it may be the function runner.
    pub(super) is_server: bool,
    /// How many pods of it there are or should be, whichever is more, without those that terminate.
    pub(super) pods: i32,
    /// Labels by which these are found, and the container in them.
    pub(super) selector: BTreeMap<String, String>,
    pub(super) container: String,
    /// The namespace of its function pods; `None` if that is not written in the Deployment.
    pub(super) functions: Option<String>,
    /// The PodTemplate that they are made from.
    pub(super) template: String,
}

/// Where a container has functions evaluated. porch-server has a flag for it, the controllers have
/// variables.
pub(super) fn callers(deployment: &Deployment, container: &Container, argv: &[&str]) -> Vec<Caller> {
    let size = MESSAGE_SIZES.iter().find_map(|flag| value_of(argv, flag));
    let max_message = size.and_then(|size| size.parse().ok()).unwrap_or(PORCH_MESSAGE);
    let variable = |name| Some((name, address_in(variable(container, name)?)));
    let runner = match value_of(argv, RUNNER_FLAG) {
        Some(address) => Some(("--function-runner", address)),
        None => variable(RUNNER_VARIABLE),
    };
    let settings = [runner, variable(EVALUATOR_VARIABLE)];
    let set = settings.into_iter().flatten().filter(|(_, address)| !address.is_empty());
    set.map(|(setting, address)| Caller {
        deployment: deployment.name_any(),
        setting,
        address: address.to_owned(),
        max_message,
    })
    .collect()
}

/// Whether a container is Porch's controllers, with packages that they render themselves
/// (v1alpha2).
pub(super) fn renders(argv: &[&str]) -> bool {
    value_of(argv, "repositories.create-v1alpha2-rpkg") == Some("true")
}

/// What starts function pods, if `container` does. `is_runner` says that it is Porch's function
/// runner, which may have its variables from an object that is not looked at.
pub(super) fn evaluator(
    deployment: &Deployment,
    container: &Container,
    argv: &[&str],
    is_runner: bool,
) -> Option<Evaluator> {
    let from_elsewhere = container.env_from.as_ref().is_some_and(|from| !from.is_empty());
    // What has neither its flags nor its port nor its image may be an old function runner by any
    // name.
    let has_port = container.ports.iter().flatten().any(|port| port.container_port == POD_EVALUATOR_PORT);
    let starts_pods = variable(container, WRAPPER_VARIABLE).is_some()
        || POD_FLAGS.iter().any(|flag| value_of(argv, flag).is_some())
        || if is_runner { from_elsewhere } else { has_port };
    if !starts_pods {
        return None;
    }
    let is_server = has_port
        || image_name(container) == "porch-server"
        || [RUNNER_FLAG, "pod-evaluator-port"].iter().any(|flag| value_of(argv, flag).is_some());
    let selector = deployment.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone());
    let functions = value_of(argv, "pod-namespace").unwrap_or(FUNCTIONS);
    Some(Evaluator {
        namespace: deployment.namespace().unwrap_or_default(),
        deployment: deployment.name_any(),
        is_server: !is_runner && is_server,
        pods: pods(deployment),
        selector: selector.unwrap_or_default(),
        container: container.name.clone(),
        functions: (!functions.contains("$(")).then(|| functions.to_owned()),
        template: value_of(argv, "base-pod-template-name").unwrap_or(BASE_TEMPLATE).to_owned(),
    })
}

/// How many pods there are or should be, whichever is more. The status leaves out pods that
/// terminate.
pub(super) fn pods(deployment: &Deployment) -> i32 {
    let there = deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    wanted.max(there)
}

/// The last part of a container's image, without tag and digest.
pub(super) fn image_name(container: &Container) -> &str {
    let image = container.image.as_deref().unwrap_or_default();
    let last = image.split('@').next().and_then(|image| image.rsplit('/').next()).unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// The value of a Go flag: `-x=v`, `--x=v`, `--x v`. Of several, Go takes the last.
pub(super) fn value_of<'a>(argv: &[&'a str], flag: &str) -> Option<&'a str> {
    argv.iter().enumerate().rev().find_map(|(index, arg)| {
        let rest = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?.strip_prefix(flag)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => argv.get(index + 1).copied(),
            None => None,
        }
    })
}

fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().find(|one| one.name == name)
}

fn address_in(variable: &EnvVar) -> &str {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) => value,
        (None, Some(_)) => ELSEWHERE,
        (None, None) => "",
    }
}

// === impl Evaluator ===

impl Evaluator {
    /// Whether its pods may be in `functions`, if it runs. Which namespace it means may be unknown.
    pub(super) fn may_use(&self, functions: &str) -> bool {
        self.functions.as_deref().is_none_or(|theirs| theirs == functions)
    }
}
