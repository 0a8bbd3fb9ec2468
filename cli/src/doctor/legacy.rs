//! The function pods of Porch's own evaluators, and their Services. Ours neither uses nor collects
//! them, and when the evaluator that made them is gone nobody else does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use porch_fn_runner::pods::kubernetes::names::{CONTAINER, IMAGE, MANAGED_BY, TEMPLATE_VERSION};
use porch_fn_service::kubernetes::{Causes, RequestError, bounded};

use super::facts::{Facts, Original};
use super::gather::gather;
use super::installation::evaluator_of;
use super::porch::Evaluator;
use super::running::{Running, processes, running, why_in_use};
use crate::cluster::{Cluster, each};
use crate::output;

#[cfg(test)]
mod tests;

/// Deployments of all namespaces that are read at once, and how often at most.
const PAGE: u32 = 500;
const MAX_PAGES: u32 = 40;

/// Of a generated name the part that is the API server's own, and the most that it leaves of the
/// rest.
const GENERATED: usize = 5;
const MAX_BASE: usize = 58;
/// Services of the function namespace that are looked at.
const MAX_SERVICES: u32 = 5000;
/// Names in one line.
const MAX_NAMED: usize = 5;

/// What Porch has made in the function namespace.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Pods that nobody uses.
    pub(super) pods: Vec<Pod>,
    /// Services that select no pod besides these.
    services: Vec<Service>,
    /// Pods that are left alone, by the reason.
    kept: BTreeMap<String, Vec<String>>,
}

/// The pods and Services of Porch's that nobody uses, and why others are kept. `servers` are the
/// porch-servers that may use them. The caller has made sure that no function runner of Porch's
/// runs.
pub(super) fn leftovers(pods: &[Pod], services: &[Service], servers: &[Running]) -> Leftovers {
    let mut left = Leftovers::default();
    let mut used = BTreeSet::new();
    for pod in pods {
        match is_legacy(pod).then(|| why_in_use(pod, servers)) {
            Some(None) => left.pods.push(pod.clone()),
            Some(Some(reason)) => {
                left.kept.entry(reason).or_default().push(pod.name_any());
                used.extend(pod.labels().get(IMAGE));
            }
            None => used.extend(pod.labels().get(IMAGE)),
        }
    }
    let dead = services.iter().filter(|service| is_legacy_service(service));
    left.services = dead.filter(|service| !used.contains(&service.name_any())).cloned().collect();
    left
}

/// By its label and annotation, and managed by nobody else. A pod that was warmed up has its
/// label's name; for one that was started for a call the API server has made a name of it.
fn is_legacy(pod: &Pod) -> bool {
    let labelled = |label: &str| pod.labels().get(label).map(String::as_str);
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    labelled(IMAGE).is_some_and(|id| is_named_after(&pod.name_any(), id))
        && labelled(MANAGED_BY).is_none()
        && pod.annotations().contains_key(TEMPLATE_VERSION)
        && pod.owner_references().is_empty()
        && containers.any(|container| container.name == CONTAINER)
}

fn is_named_after(name: &str, id: &str) -> bool {
    let base: String = format!("{id}-").chars().take(MAX_BASE).collect();
    let generated = name
        .strip_prefix(&base)
        .is_some_and(|rest| rest.len() == GENERATED && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    !id.is_empty() && (name == id || generated)
}

/// Porch names a Service by the label of the pods that it selects.
fn is_legacy_service(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selected = selector.and_then(|selector| selector.get(IMAGE));
    selected.is_some()
        && selected == service.metadata.name.as_ref()
        && !service.labels().contains_key(MANAGED_BY)
        && service.owner_references().is_empty()
}

/// Why nothing may be deleted: somebody may still need it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Needed {
    #[error(
        "no runner of ours is known in namespace {0}: see -n; while Porch's own runs, it needs these pods"
    )]
    NoRunner(String),
    #[error("Porch's own function runner runs, and needs them")]
    Original,
    #[error(
        "what runs as {0} may be Porch's own function runner, which needs them: each of its pods has to say that it is ours"
    )]
    Unknown(String),
    #[error(
        "Porch's own function runner still runs, and makes them anew; first: kubectl -n {namespace} scale deployment \
         {deployment} --replicas=0"
    )]
    Beside { namespace: String, deployment: String },
    #[error(
        "Deployment {deployment} in namespace {namespace} may be Porch's own function runner, and need them as well. If \
         it is, once nobody calls it: kubectl -n {namespace} scale deployment {deployment} --replicas=0; if it is one \
         of ours, delete them by the kubectl command of the README's chapter on moving"
    )]
    Elsewhere { namespace: String, deployment: String },
    #[error(
        "Deployment {deployment} in namespace {namespace} may be or may have been Porch's own function runner; pods of \
         it still terminate, and need them until they are gone: kubectl -n {namespace} get pods"
    )]
    Terminating { namespace: String, deployment: String },
    #[error(
        "Porch's own function runner may run in another namespace, and need them as well; the Deployments of all \
         namespaces, or the pods of one, cannot be looked through: {0}"
    )]
    Unlisted(String),
}

/// Lists them, and deletes them when told to.
pub(super) async fn clean(cluster: &Cluster, yes: bool) -> ExitCode {
    match try_clean(cluster, yes).await {
        Ok(all_deleted) if all_deleted => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => output::fail("doctor --clean-legacy", error),
    }
}

async fn try_clean(cluster: &Cluster, yes: bool) -> Result<bool, String> {
    let (facts, found) = look(cluster).await?;
    let namespace = &facts.functions;
    output::show(&found.listed(namespace));
    if found.is_empty() {
        let more = if facts.more_function_pods { ", among the first pods there" } else { "" };
        output::show(&format!("nothing of Porch's is left to delete in {namespace}{more}\n"));
        return Ok(true);
    }
    if !yes && !agreed(&found) {
        eprintln!("nothing was deleted; --yes deletes without asking");
        return Ok(true);
    }
    // The answer may have taken long.
    let (_, still) = look(cluster).await?;
    let mut failed = false;
    let mut deleted = |what: String, outcome: Result<(), String>| match outcome {
        Ok(()) => output::show(&format!("{what} deleted\n")),
        Err(error) => {
            eprintln!("{what}: {error}");
            failed = true;
        }
    };
    for pod in found.pods.iter().filter(|pod| still.pods.iter().any(|other| other.uid() == pod.uid())) {
        deleted(format!("pod/{}", pod.name_any()), delete(cluster, namespace, pod).await);
    }
    let is_still = |service: &&Service| still.services.iter().any(|other| other.uid() == service.uid());
    for service in found.services.iter().filter(is_still) {
        deleted(format!("service/{}", service.name_any()), delete_service(cluster, namespace, service).await);
    }
    Ok(!failed)
}

/// What there is; `Err` also says who may need all of it.
async fn look(cluster: &Cluster) -> Result<(Facts, Leftovers), String> {
    let facts = gather(cluster).await.map_err(|error| error.to_string())?;
    let pods = match &facts.function_pods {
        Ok(pods) => pods,
        Err(error) => return Err(format!("the pods of {} cannot be listed: {error}", facts.functions)),
    };
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), &facts.functions);
    let listed = bounded(api.list(&ListParams::default().limit(MAX_SERVICES))).await;
    let services = listed.map_err(|error| {
        format!("the Services of {} cannot be listed: {}", facts.functions, Causes(&error))
    })?;
    let all = leftovers(pods, &services.items, &[]);
    if all.is_empty() {
        return Ok((facts, all));
    }
    let servers = unneeded(cluster, &facts).await?;
    let left = leftovers(pods, &services.items, &servers);
    Ok((facts, left))
}

/// The porch-servers that may use some of what was found. `Err` says who may use all of it.
async fn unneeded(cluster: &Cluster, facts: &Facts) -> Result<Vec<Running>, String> {
    if let Some(needed) = needed(facts) {
        return Err(needed.to_string());
    }
    let mut servers = Vec::new();
    for evaluator in everywhere(cluster, facts).await.map_err(|needed| needed.to_string())? {
        if evaluator.is_server {
            servers.extend(running(cluster, &evaluator, &facts.functions).await);
        } else if let Some(needed) = needed_by(cluster, facts, evaluator).await {
            return Err(needed.to_string());
        }
    }
    Ok(servers)
}

/// The evaluators of all namespaces that may have their pods in the same one.
async fn everywhere(cluster: &Cluster, facts: &Facts) -> Result<Vec<Evaluator>, Needed> {
    let api: Api<Deployment> = Api::all(cluster.client.clone());
    let mut evaluators = Vec::new();
    let take = |deployment: Deployment| {
        evaluators.extend(evaluator_of(&deployment).filter(|one| one.may_use(&facts.functions)));
    };
    let all = each(&api, PAGE, MAX_PAGES, take).await.map_err(|error| {
        let takes = "it takes a ClusterRole with the right to list deployments of group apps";
        Needed::Unlisted(format!("{}; {takes}", Causes(&error)))
    })?;
    if all {
        return Ok(evaluators);
    }
    Err(Needed::Unlisted(format!("there are more than {}", PAGE * MAX_PAGES)))
}

/// Whether a function runner that was found may need the pods. Ours, in the place of Porch's, may
/// still have pods of Porch's that terminate.
async fn needed_by(cluster: &Cluster, facts: &Facts, runner: Evaluator) -> Option<Needed> {
    let known = facts.installed.runner.as_ref().map(|runner| &runner.deployment);
    let is_ours = runner.namespace == facts.namespace && known == Some(&runner.deployment);
    if runner.pods > 0 && !is_ours {
        return Some(Needed::Elsewhere { namespace: runner.namespace, deployment: runner.deployment });
    }
    match processes(cluster, &runner).await {
        Ok(pods) => {
            let needs = |pod: &Pod| !is_ours || pod.metadata.deletion_timestamp.is_some();
            let Evaluator { namespace, deployment, .. } = runner;
            pods.iter().any(needs).then_some(Needed::Terminating { namespace, deployment })
        }
        Err(error) => Some(Needed::Unlisted(error)),
    }
}

/// Whether somebody here may need what Porch's runner has made. Only a runner of ours that says so
/// has taken its place.
fn needed(facts: &Facts) -> Option<Needed> {
    let namespace = || facts.namespace.clone();
    let Some(runner) = facts.installed.runner.as_ref().filter(|runner| runner.flags.is_ok()) else {
        return Some(Needed::NoRunner(namespace()));
    };
    match facts.original() {
        Original::Yes => return Some(Needed::Original),
        Original::Unknown => return Some(Needed::Unknown(runner.deployment.clone())),
        Original::No => (),
    }
    let ours = facts.runners.iter().all(|runner| runner.answer.as_ref().is_ok_and(|answer| answer.ours));
    if facts.runners.is_empty() || !ours {
        return Some(Needed::Unknown(runner.deployment.clone()));
    }
    let running = facts.installed.originals.iter().find(|original| original.pods > 0 && original.starts_pods);
    running.map(|original| Needed::Beside { namespace: namespace(), deployment: original.deployment.clone() })
}

/// Asks, where there is somebody to ask.
fn agreed(found: &Leftovers) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    print!("Delete these {} pods and {} Services? [y/N] ", found.pods.len(), found.services.len());
    let mut answer = String::new();
    let asked = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    asked.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The pod that was listed, no other of its name. One that is gone is as good as deleted.
async fn delete(cluster: &Cluster, namespace: &str, pod: &Pod) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    gone(bounded(pods.delete(&pod.name_any(), &only(pod.metadata.uid.clone()))).await.map(|_| ()))
}

/// The Service that was listed, unless there is a pod that it selects.
async fn delete_service(cluster: &Cluster, namespace: &str, service: &Service) -> Result<(), String> {
    let name = service.name_any();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let selected = bounded(pods.list(&ListParams::default().labels(&format!("{IMAGE}={name}")))).await;
    let selected = selected.map_err(|error| Causes(&error).to_string())?;
    if let Some(pod) = selected.items.iter().find(|pod| pod.metadata.deletion_timestamp.is_none()) {
        return Err(format!("not deleted, since pod {} may be in use", pod.name_any()));
    }
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), namespace);
    gone(bounded(services.delete(&name, &only(service.metadata.uid.clone()))).await.map(|_| ()))
}

fn only(uid: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid, resource_version: None })
}

fn gone(deleted: Result<(), RequestError>) -> Result<(), String> {
    match deleted {
        Err(error) if error.code() == Some(404) => Ok(()),
        other => other.map_err(|error| Causes(&error).to_string()),
    }
}

// === impl Leftovers ===

impl Leftovers {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.services.is_empty()
    }

    /// A line for each object that can be deleted, and one for each reason why others are kept.
    fn listed(&self, namespace: &str) -> String {
        let mut text = String::new();
        for (kind, name) in self
            .pods
            .iter()
            .map(|pod| ("pod", pod.name_any()))
            .chain(self.services.iter().map(|service| ("service", service.name_any())))
        {
            let _ = writeln!(text, "{kind}/{name} in {namespace}");
        }
        for (reason, pods) in &self.kept {
            let names = pods[..pods.len().min(MAX_NAMED)].join(", ");
            let more = if pods.len() > MAX_NAMED { ", ..." } else { "" };
            let count = pods.len();
            let _ = writeln!(text, "{count} pods in {namespace} are kept ({names}{more}); {reason}");
        }
        text
    }
}
