//! The function pods of Porch's own function runner. Ours neither uses nor collects them, and when the original is gone
//! nobody else does.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use porch_fn_runner::pods::kubernetes::names::{CONTAINER, IMAGE, MANAGED_BY, TEMPLATE_VERSION};
use porch_fn_service::kubernetes::{Causes, RequestError, bounded};

use super::facts::{Facts, Original};
use super::gather::gather;
use super::installation::may_use;
use crate::cluster::Cluster;
use crate::output;

#[cfg(test)]
mod tests;

/// Deployments of all namespaces that are read at once, and how often at most.
const PAGE: u32 = 500;
const MAX_PAGES: u32 = 40;

/// Those of `pods` that the original has made: by its label and annotation, and managed by nobody else.
pub(super) fn pods(pods: &[Pod]) -> Vec<&Pod> {
    pods.iter().filter(|pod| is_legacy(pod)).collect()
}

fn is_legacy(pod: &Pod) -> bool {
    let name = pod.metadata.name.as_deref();
    let labelled = |label: &str| pod.labels().get(label).map(String::as_str);
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    name.is_some()
        && labelled(IMAGE) == name
        && labelled(MANAGED_BY).is_none()
        && pod.annotations().contains_key(TEMPLATE_VERSION)
        && pod.owner_references().is_empty()
        && containers.any(|container| container.name == CONTAINER)
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
        "Porch's own function runner may run in another namespace, and need them as well; the Deployments of all \
         namespaces cannot be looked through: {0}"
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
    let more = if facts.more_function_pods { ", among the first pods there" } else { "" };
    if found.is_empty() {
        output::show(&format!("Porch's own function runner has left nothing in {namespace}{more}\n"));
        return Ok(true);
    }
    for pod in &found {
        output::show(&format!("pod/{} in {namespace}, and the Service of that name\n", pod.name_any()));
    }
    unneeded(cluster, &facts).await?;
    if !yes && !agreed(found.len()) {
        eprintln!("nothing was deleted; --yes deletes without asking");
        return Ok(true);
    }
    // The answer may have taken long.
    let (facts, still) = look(cluster).await?;
    unneeded(cluster, &facts).await?;
    let mut all_deleted = true;
    for pod in found.iter().filter(|pod| still.iter().any(|other| other.uid() == pod.uid())) {
        match delete(cluster, namespace, pod).await {
            Ok(()) => output::show(&format!("pod/{} deleted\n", pod.name_any())),
            Err(error) => {
                eprintln!("pod/{}: {}", pod.name_any(), Causes(&error));
                all_deleted = false;
            }
        }
    }
    Ok(all_deleted)
}

async fn look(cluster: &Cluster) -> Result<(Facts, Vec<Pod>), String> {
    let facts = gather(cluster).await.map_err(|error| error.to_string())?;
    let found = match &facts.function_pods {
        Ok(all) => pods(all).into_iter().cloned().collect(),
        Err(error) => return Err(format!("the pods of {} cannot be listed: {error}", facts.functions)),
    };
    Ok((facts, found))
}

/// `Err` says who may need what was found.
async fn unneeded(cluster: &Cluster, facts: &Facts) -> Result<(), String> {
    let needed = match needed(facts) {
        Some(needed) => Some(needed),
        None => needed_elsewhere(cluster, facts).await,
    };
    needed.map_or(Ok(()), |needed| Err(needed.to_string()))
}

/// Runners of several namespaces may keep their pods in one.
async fn needed_elsewhere(cluster: &Cluster, facts: &Facts) -> Option<Needed> {
    let api: Api<Deployment> = Api::all(cluster.client.clone());
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..MAX_PAGES {
        let page = match bounded(api.list(&params)).await {
            Ok(page) => page,
            Err(error) => {
                let takes = "it takes a ClusterRole with the right to list deployments of group apps";
                return Some(Needed::Unlisted(format!("{}; {takes}", Causes(&error))));
            }
        };
        if let Some(needed) = needed_by(&page.items, facts) {
            return Some(needed);
        }
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return None,
        }
    }
    Some(Needed::Unlisted(format!("there are more than {}", PAGE * MAX_PAGES)))
}

/// Whether one of these needs it, outside the namespace that was looked at.
fn needed_by(deployments: &[Deployment], facts: &Facts) -> Option<Needed> {
    let mut elsewhere = deployments.iter().filter(|one| one.namespace().as_ref() != Some(&facts.namespace));
    elsewhere.find(|one| may_use(one, &facts.functions)).map(|one| Needed::Elsewhere {
        namespace: one.namespace().unwrap_or_default(),
        deployment: one.name_any(),
    })
}

/// Whether somebody here may need what Porch's runner has made. Only a runner of ours that says so has taken its place.
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
    let running = facts.installed.originals.iter().find(|(_, replicas)| *replicas > 0);
    running.map(|(deployment, _)| Needed::Beside { namespace: namespace(), deployment: deployment.clone() })
}

/// Asks, where there is somebody to ask.
fn agreed(count: usize) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    print!("Delete these {count} pods and their Services? [y/N] ");
    let mut answer = String::new();
    let asked = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    asked.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The pod that was listed, no other of its name, and its Service. One that is gone is as good as deleted.
async fn delete(cluster: &Cluster, namespace: &str, pod: &Pod) -> Result<(), RequestError> {
    let name = pod.name_any();
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), namespace);
    if let Some(service) = bounded(services.get_opt(&name)).await?
        && is_its_service(&service, &name)
    {
        let only = only(service.metadata.uid.clone());
        gone(bounded(services.delete(&name, &only)).await.map(|_| ()))?;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    gone(bounded(pods.delete(&name, &only(pod.metadata.uid.clone()))).await.map(|_| ()))
}

fn is_its_service(service: &Service, name: &str) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selected = selector.and_then(|selector| selector.get(IMAGE)).map(String::as_str);
    selected == Some(name) && !service.labels().contains_key(MANAGED_BY)
}

fn only(uid: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid, resource_version: None })
}

fn gone(deleted: Result<(), RequestError>) -> Result<(), RequestError> {
    match deleted {
        Err(error) if error.code() == Some(404) => Ok(()),
        other => other,
    }
}
