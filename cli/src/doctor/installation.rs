//! What is installed in a namespace, made out of its Deployments. Pure. Flags are read with the
//! programs' own parsers, so that what the doctor takes them to be is what they are.

use std::collections::BTreeMap;

use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::ResourceExt;
use porch_fn_service::flags;

use super::porch::{Caller, ELSEWHERE, Evaluator, callers, evaluator, image_name, pods, renders, value_of};
use super::quantity;

#[cfg(test)]
mod tests;

/// Porch's own function runner is known by its Deployment or its image. Ours stands in for it under
/// the same names. Its flags prove nothing of a Deployment, since porch-server has them as well; in
/// one they tell its container.
const ORIGINAL: &str = "function-runner";
const ORIGINALS_FLAG: &str = "pod-namespace";
const IMAGES: [&str; 2] = ["porch-function-runner", "function-runner"];
/// What its program is called, and ours in its image. A program that only the image names is taken
/// for it.
const SERVER: &str = "server";
/// The variable of a program's own namespace: without it, that of its pod.
const OWN_NAMESPACE: &str = "POD_NAMESPACE";

/// One of our programs, as its Deployment runs it.
#[derive(Debug)]
pub(super) struct Program<F> {
    /// The Deployment.
    pub(super) deployment: String,
    /// Whether it goes by the name of Porch's own function runner, and may be that.
    pub(super) may_be_original: bool,
    /// Pods it should have.
    pub(super) replicas: i32,
    /// Pods that are ready.
    pub(super) ready: i32,
    /// Labels of its pods, by which they are found.
    pub(super) selector: BTreeMap<String, String>,
    /// Labels that its pods get, by which a Service finds them.
    pub(super) labels: BTreeMap<String, String>,
    /// Its service account.
    pub(super) account: String,
    /// The container's image.
    pub(super) image: String,
    /// The container's memory limit in bytes.
    pub(super) memory: Option<u64>,
    /// How long its pods have to end, in seconds.
    pub(super) grace: i64,
    /// The flags, or why the program does not start with them.
    pub(super) flags: Result<F, String>,
}

/// What may be Porch's own function runner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PorchRunner {
    pub(super) deployment: String,
    /// How many pods of it there are or should be, whichever is more.
    pub(super) pods: i32,
    /// Whether it starts function pods: from the next Porch on it runs executables alone.
    pub(super) starts_pods: bool,
}

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Installation {
    pub(super) router: Option<Program<porch_fn_router::Flags>>,
    /// The runners behind the routers, or the one that stands alone.
    pub(super) runner: Option<Program<porch_fn_runner::Flags>>,
    /// Beside routers or runners of ours: what may be Porch's own function runner.
    pub(super) originals: Vec<PorchRunner>,
    pub(super) callers: Vec<Caller>,
    /// Controllers of Porch's that render packages, and are told of no evaluator.
    pub(super) without_evaluator: Vec<String>,
    /// porch-servers that start function pods themselves.
    pub(super) servers: Vec<Evaluator>,
    /// Labels of the pods of each Deployment.
    pub(super) pod_labels: Vec<(String, BTreeMap<String, String>)>,
}

/// Whose a Deployment is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Router,
    Runner,
    /// Porch's own function runner, or ours in its place.
    Original,
}

/// What `deployments` are.
pub(super) fn installation(deployments: &[Deployment]) -> Installation {
    let mut found = Installation::default();
    let mut originals = Vec::new();
    for deployment in deployments {
        match recognised(deployment) {
            Some((Kind::Router, container, argv)) => {
                found.router = Some(program_of(deployment, container, &argv, false));
            }
            Some((Kind::Runner, container, argv)) => {
                found.runner = Some(program_of(deployment, container, &argv, false));
            }
            Some((Kind::Original, container, argv)) => originals.push((deployment, container, argv)),
            None => {
                let all = || containers(deployment);
                let callers: Vec<_> = all().flat_map(|one| callers(deployment, one, &argv(one))).collect();
                if callers.is_empty() && all().any(|one| renders(&argv(one))) {
                    found.without_evaluator.push(deployment.name_any());
                }
                found.callers.extend(callers);
                found.servers.extend(evaluator_of(deployment).filter(|evaluator| evaluator.is_server));
            }
        }
        found.pod_labels.push((deployment.name_any(), pod_labels(deployment)));
    }
    // One that runs must not be hidden by one that does not.
    originals.sort_by_key(|(deployment, ..)| pods(deployment) == 0);
    let mut originals = originals.into_iter();
    // Ours takes its place only where it stands alone.
    if found.router.is_none()
        && found.runner.is_none()
        && let Some((deployment, container, argv)) = originals.next()
    {
        found.runner = Some(program_of(deployment, container, &argv, true));
    }
    let originals = originals.map(|(deployment, container, argv)| PorchRunner {
        deployment: deployment.name_any(),
        pods: pods(deployment),
        starts_pods: evaluator(deployment, container, &argv, true).is_some(),
    });
    found.originals = originals.collect();
    found
}

/// What starts function pods, unless it is known to be ours.
pub(super) fn evaluator_of(deployment: &Deployment) -> Option<Evaluator> {
    match recognised(deployment) {
        Some((Kind::Router | Kind::Runner, ..)) => None,
        Some((Kind::Original, container, argv)) => evaluator(deployment, container, &argv, true),
        None => containers(deployment).find_map(|one| evaluator(deployment, one, &argv(one), false)),
    }
}

/// The one container that a Deployment is known by, and its command line. Others are there to help
/// it.
fn recognised(deployment: &Deployment) -> Option<(Kind, &Container, Vec<&str>)> {
    let is_named = deployment.name_any() == ORIGINAL;
    let candidates = containers(deployment).filter_map(|container| {
        let argv = argv(container);
        let program = argv.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let (doubt, kind) = match program {
            "porch-fn-router" => (0, Kind::Router),
            "porch-fn-runner" => (0, Kind::Runner),
            SERVER if IMAGES.contains(&image_name(container)) => (1, Kind::Original),
            _ if is_named && value_of(&argv, ORIGINALS_FLAG).is_some() => (1, Kind::Original),
            SERVER if is_named && container.command.is_some() => (2, Kind::Original),
            _ if is_named => (3, Kind::Original),
            _ => return None,
        };
        Some((doubt, (kind, container, argv)))
    });
    candidates.min_by_key(|(doubt, _)| *doubt).map(|(_, found)| found)
}

fn argv(container: &Container) -> Vec<&str> {
    let of_image = container.command.is_none().then_some(SERVER);
    let given = container.command.iter().chain(&container.args).flatten().map(String::as_str);
    of_image.into_iter().chain(given).collect()
}

fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    deployment.spec.iter().filter_map(|spec| spec.template.spec.as_ref()).flat_map(|spec| &spec.containers)
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn pod_labels(deployment: &Deployment) -> BTreeMap<String, String> {
    let metadata = deployment.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    metadata.and_then(|metadata| metadata.labels.clone()).unwrap_or_default()
}

fn program_of<F: Parser>(
    deployment: &Deployment,
    container: &Container,
    argv: &[&str],
    may_be_original: bool,
) -> Program<F> {
    let spec = deployment.spec.clone().unwrap_or_default();
    let pod = spec.template.spec.unwrap_or_default();
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let memory = limits.and_then(|limits| quantity::bytes(&limits.get("memory")?.0));
    Program {
        deployment: deployment.name_any(),
        may_be_original,
        replicas: replicas(deployment),
        ready: deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default(),
        selector: spec.selector.match_labels.unwrap_or_default(),
        labels: pod_labels(deployment),
        account: pod.service_account_name.unwrap_or_else(|| "default".to_owned()),
        image: container.image.clone().unwrap_or_default(),
        memory,
        grace: pod.termination_grace_period_seconds.unwrap_or(30),
        flags: parsed(argv, container, &deployment.namespace().unwrap_or_default()),
    }
}

/// The flags as the program reads them: those of its command line, and below them those of its
/// environment. The doctor's own environment must not count, so each variable that a flag falls
/// back to is given as a flag.
fn parsed<F: Parser>(argv: &[&str], container: &Container, namespace: &str) -> Result<F, String> {
    let env = container.env.as_deref().unwrap_or_default();
    let known: Vec<_> =
        env.iter().filter_map(|one| Some((one.name.as_str(), value_here(one, namespace)?))).collect();
    let from_elsewhere = |name: &str| {
        env.iter().any(|one| one.name == name)
            || container.env_from.as_ref().is_some_and(|from| !from.is_empty())
    };
    let command = F::command();
    let fallbacks = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env()?.to_str()?;
        let default = arg.get_default_values().first().and_then(|value| value.to_str()).unwrap_or_default();
        let value = match known.iter().find(|(name, _)| *name == variable) {
            Some((_, value)) => value,
            // A text may be anything, but the namespace is most likely the pod's; of others the
            // default is the best guess.
            None if default.is_empty() && variable != OWN_NAMESPACE && from_elsewhere(variable) => ELSEWHERE,
            None => default,
        };
        Some(format!("--{}={value}", arg.get_long()?))
    });
    let program = argv.first().copied().unwrap_or_default().to_owned();
    let given = argv.iter().skip(1).map(|arg| {
        // As the kubelet replaces them.
        known.iter().fold((*arg).to_owned(), |arg, (name, value)| arg.replace(&format!("$({name})"), value))
    });
    let args = std::iter::once(program).chain(fallbacks).chain(given).map(Into::into);
    flags::parse(args).map_err(|error| error.to_string())
}

/// The value of a variable as far as the Deployment says it.
fn value_here<'a>(variable: &'a EnvVar, namespace: &'a str) -> Option<&'a str> {
    let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
    match (&variable.value, &variable.value_from) {
        (Some(value), _) => Some(value),
        (None, None) => Some(""),
        (None, Some(_)) => (field?.field_path == "metadata.namespace").then_some(namespace),
    }
}
