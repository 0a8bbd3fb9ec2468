//! Reads from Porch's Deployments how Porch evaluates functions: which addresses it calls, and
//! which Deployments start function pods themselves. Pure functions without I/O.

use super::workload::{Program, Workload};

/// Porch's default namespace for function pods.
pub(super) const FUNCTIONS: &str = "porch-fn-system";
/// Porch's default for the maximum message size, in bytes.
const PORCH_MESSAGE: u64 = 6_291_456;
/// porch-server's flag for the address of a function runner.
const RUNNER_FLAG: &str = "function-runner";
/// Variables of porch-controllers with addresses. After Porch 1.6, the first address is only for
/// functions with an executable, and the second is for all other functions.
pub(super) const RUNNER_VARIABLE: &str = "FUNCTION_RUNNER_ADDRESS";
pub(super) const EVALUATOR_VARIABLE: &str = "POD_EVALUATOR_ADDRESS";
/// Every evaluator of Porch that starts pods has this variable.
const WRAPPER_VARIABLE: &str = "WRAPPER_SERVER_IMAGE";
/// Only evaluators that start pods have these flags and this port.
const POD_FLAGS: [&str; 2] = ["pod-namespace", "pod-evaluator-port"];
const POD_EVALUATOR_PORT: i32 = 9447;
/// Porch's flags for the maximum message size. The first is of porch-server v1.5, whose other size
/// flag is for its own API. The next two are the current and the older name in porch-controllers.
/// The last is of porch-server. If a program has several of these flags, the first counts.
const MESSAGE_SIZES: [&str; 4] = [
    "function-runner-grpc-max-message-size",
    "packagerevisions.max-grpc-message-size",
    "max-grpc-message-size",
    "max-request-body-size",
];

/// An address that a program of Porch calls to evaluate functions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The program's Deployment.
    pub(super) deployment: String,
    /// The flag or variable with the address.
    pub(super) setting: &'static str,
    pub(super) address: String,
    /// The program's maximum message size, in bytes.
    pub(super) max_message: u64,
}

/// A Deployment of Porch that starts function pods.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Evaluator {
    pub(super) workload: Workload,
    /// The container that evaluates.
    pub(super) container: String,
    /// Whether this Deployment is porch-server. Otherwise it may be the function runner.
    pub(super) is_server: bool,
    /// The namespace of its function pods; `None` if the Deployment does not contain it.
    functions: Option<String>,
    /// The PodTemplate of its function pods.
    pub(super) template: String,
}

/// Returns the addresses that a program calls to evaluate functions. porch-server has the address
/// in a flag, porch-controllers in variables.
pub(super) fn callers(workload: &Workload, program: &Program<'_>) -> Vec<Caller> {
    let size = MESSAGE_SIZES.iter().find_map(|flag| program.flag(flag));
    let max_message = size.and_then(|size| size.parse().ok()).unwrap_or(PORCH_MESSAGE);
    let variable = |name| Some((name, program.variable(name)?));
    let flag = program.flag(RUNNER_FLAG).map(|address| ("--function-runner", address));
    let settings = [flag.or_else(|| variable(RUNNER_VARIABLE)), variable(EVALUATOR_VARIABLE)];
    let set = settings.into_iter().flatten().filter(|(_, address)| !address.is_empty());
    set.map(|(setting, address)| Caller {
        deployment: workload.name.clone(),
        setting,
        address: address.to_owned(),
        max_message,
    })
    .collect()
}

/// Returns the evaluator if `program` starts function pods. `is_runner`: the program is Porch's
/// function runner. A function runner with `envFrom` counts as starting pods, because doctor does
/// not read the object that has the variables.
pub(super) fn evaluator(workload: &Workload, program: &Program<'_>, is_runner: bool) -> Option<Evaluator> {
    // `is_server` needs evidence: a program without porch-server's flags, port and image may be an
    // old function runner under any name.
    let mut ports = program.container.ports.iter().flatten();
    let has_port = ports.any(|port| port.container_port == POD_EVALUATOR_PORT);
    let has_flag = |flags: [&str; 2]| flags.iter().any(|flag| program.flag(flag).is_some());
    let starts_pods = program.variable(WRAPPER_VARIABLE).is_some()
        || has_flag(POD_FLAGS)
        || if is_runner { program.has_env_from() } else { has_port };
    let is_server =
        has_port || program.image_name() == "porch-server" || has_flag([RUNNER_FLAG, "pod-evaluator-port"]);
    let functions = program.flag("pod-namespace").unwrap_or(FUNCTIONS);
    let template = program.flag("base-pod-template-name");
    starts_pods.then(|| Evaluator {
        workload: workload.clone(),
        container: program.container.name.clone(),
        is_server: !is_runner && is_server,
        functions: (!functions.contains("$(")).then(|| functions.to_owned()),
        template: template.unwrap_or(porch_fn_runner_config::BASE_POD_TEMPLATE).to_owned(),
    })
}

// === impl Evaluator ===

impl Evaluator {
    /// Returns whether the evaluator's pods may be in namespace `functions`. If its namespace is
    /// unknown, they may.
    pub(super) fn may_use(&self, functions: &str) -> bool {
        self.functions.as_deref().is_none_or(|theirs| theirs == functions)
    }
}
