//! Identifies our programs and Porch's programs in a namespace from its Deployments. Pure functions
//! without I/O. Flags are parsed with the programs' own parsers, so that doctor sees the values
//! that the programs use.

use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use porch_fn_flags::ServerFlags;
use porch_fn_router::Flags as RouterFlags;
use porch_fn_runner_config::Flags as RunnerFlags;
use porch_fn_settings::quantity;

use super::porch::{Caller, Evaluator, callers, evaluator};
use super::workload::{Program, SERVER, Workload};

#[cfg(test)]
mod tests;

/// Porch's own function runner is recognised by the name of its Deployment or image. Our runner may
/// replace it under the same names. The flag `pod-namespace` does not identify a Deployment,
/// because porch-server has it as well. In a Deployment with the runner's name, the flag identifies
/// the container.
const ORIGINAL: &str = "function-runner";
const ORIGINALS_FLAG: &str = "pod-namespace";
const IMAGES: [&str; 2] = ["porch-function-runner", "function-runner"];

/// Routers or runners of ours.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) workload: Workload,
    /// The container's image.
    pub(super) image: String,
    /// The container's memory limit in bytes.
    pub(super) memory: Option<u64>,
    /// The flags that routers and runners have in common, or the error if the program refuses to
    /// start with its flags.
    pub(super) flags: Result<ServerFlags, String>,
}

/// Everything that doctor recognises in a namespace.
#[derive(Debug, Default)]
pub(super) struct Installation {
    pub(super) router: Option<Server>,
    pub(super) router_flags: Option<RouterFlags>,
    /// The runners behind the routers, or the only runner if there are no routers.
    pub(super) runner: Option<Server>,
    pub(super) runner_flags: Option<RunnerFlags>,
    /// Whether `runner` may be Porch's own function runner. Our runner may replace it under the same
    /// names, so the names do not decide.
    pub(super) may_be_original: bool,
    /// Other Deployments that may be Porch's own function runner. After Porch 1.6, Porch's runner
    /// starts no function pods: it only runs executables.
    pub(super) originals: Vec<Workload>,
    pub(super) callers: Vec<Caller>,
    /// porch-controllers that render packages but have no evaluator's address.
    pub(super) without_evaluator: Vec<String>,
    /// porch-servers that start function pods themselves.
    pub(super) servers: Vec<Evaluator>,
    /// All Deployments.
    pub(super) workloads: Vec<Workload>,
}

/// The program that a Deployment runs.
#[derive(Debug, Clone, Copy)]
enum ProgramKind {
    Router,
    Runner,
    /// Porch's own function runner, or ours in its place.
    Original,
}

/// Recognises the programs in `deployments`.
pub(super) fn installation(deployments: &[Deployment]) -> Installation {
    let workloads: Vec<_> = deployments.iter().map(Workload::from).collect();
    let mut found = Installation::default();
    let mut originals = Vec::new();
    for workload in &workloads {
        match recognised(workload) {
            Some((ProgramKind::Router, program)) => {
                (found.router, found.router_flags) =
                    server(workload, &program, |flags: &RouterFlags| &flags.server);
            }
            Some((ProgramKind::Runner, program)) => {
                (found.runner, found.runner_flags) =
                    server(workload, &program, |flags: &RunnerFlags| &flags.server);
            }
            Some((ProgramKind::Original, program)) => originals.push((workload, program)),
            None => {
                let callers: Vec<_> = workload.programs().flat_map(|one| callers(workload, &one)).collect();
                // porch-controllers with this flag render packages of v1alpha2 themselves.
                let renders =
                    |one: Program<'_>| one.flag("repositories.create-v1alpha2-rpkg") == Some("true");
                if callers.is_empty() && workload.programs().any(renders) {
                    found.without_evaluator.push(workload.name.clone());
                }
                found.callers.extend(callers);
                found.servers.extend(evaluator_of(workload).filter(|evaluator| evaluator.is_server));
            }
        }
    }
    // A stopped Deployment must not hide a running one.
    originals.sort_by_key(|(workload, _)| workload.pods == 0);
    let mut originals = originals.into_iter();
    // Our runner replaces Porch's runner only in an installation without routers.
    if found.router.is_none()
        && found.runner.is_none()
        && let Some((workload, program)) = originals.next()
    {
        (found.runner, found.runner_flags) = server(workload, &program, |flags: &RunnerFlags| &flags.server);
        found.may_be_original = true;
    }
    found.originals = originals.map(|(workload, _)| workload.clone()).collect();
    found.workloads = workloads;
    found
}

/// Returns the evaluator that starts function pods, if the Deployment has one. Also `None` for a
/// program that is certainly ours.
pub(super) fn evaluator_of(workload: &Workload) -> Option<Evaluator> {
    match recognised(workload) {
        Some((ProgramKind::Router | ProgramKind::Runner, _)) => None,
        Some((ProgramKind::Original, program)) => evaluator(workload, &program, true),
        None => workload.programs().find_map(|program| evaluator(workload, &program, false)),
    }
}

/// Returns the program that identifies a Deployment. Other containers count as sidecars.
fn recognised(workload: &Workload) -> Option<(ProgramKind, Program<'_>)> {
    let is_named = workload.name == ORIGINAL;
    let candidates = workload.programs().filter_map(|program| {
        let (doubt, kind) = match program.name() {
            "porch-fn-router" => (0, ProgramKind::Router),
            "porch-fn-runner" => (0, ProgramKind::Runner),
            SERVER if IMAGES.contains(&program.image_name()) => (1, ProgramKind::Original),
            _ if is_named && program.flag(ORIGINALS_FLAG).is_some() => (1, ProgramKind::Original),
            SERVER if is_named && program.container.command.is_some() => (2, ProgramKind::Original),
            _ if is_named => (3, ProgramKind::Original),
            _ => return None,
        };
        Some((doubt, (kind, program)))
    });
    candidates.min_by_key(|(doubt, _)| *doubt).map(|(_, found)| found)
}

/// Returns a server and all its flags. `common` returns those of every server.
fn server<F: Parser>(
    workload: &Workload,
    program: &Program<'_>,
    common: fn(&F) -> &ServerFlags,
) -> (Option<Server>, Option<F>) {
    let limits = program.container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let flags = program.parse(&workload.namespace);
    let server = Server {
        workload: workload.clone(),
        image: program.container.image.clone().unwrap_or_default(),
        memory: limits.and_then(|limits| quantity(&limits.get("memory")?.0)).map(|bytes| bytes as u64),
        flags: flags.as_ref().map(|flags| common(flags).clone()).map_err(String::clone),
    };
    (Some(server), flags.ok())
}
