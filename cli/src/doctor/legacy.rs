//! Function pods that Porch's own evaluators have created, and their Services. Our runners neither
//! use nor delete them. When the evaluator is gone, nothing else deletes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::io::{IsTerminal, Write as _};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Resource, ResourceExt};
use porch_fn_kubernetes::bounded;
use porch_fn_runner_config::names::{CONTAINER, IMAGE, MANAGED_BY, TEMPLATE_VERSION};
use porch_fn_telemetry::Causes;
use serde::de::DeserializeOwned;

use super::facts::Facts;
use super::gather::gather;
use super::installation::evaluator_of;
use super::porch::Evaluator;
use super::running::{Running, processes, running, why_in_use};
use super::workload::Workload;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::output::{self, note};
use crate::progress::report_if_slow;

#[cfg(test)]
mod tests;

/// Maximum number of Deployments to read, over all namespaces.
const MAX_DEPLOYMENTS: u32 = 20_000;

/// To generate a name, the API server cuts the base to [`MAX_BASE`] characters and appends this
/// many random characters.
const RANDOM_SUFFIX: usize = 5;
const MAX_BASE: usize = 58;

const MAY_RUN_ELSEWHERE: &str =
    "Porch's own function runner may run in another namespace and need the function pods";

/// Objects that Porch has created in the function namespace.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Pods that nobody uses.
    pub(super) pods: Vec<Pod>,
    /// Services that select no pods other than `pods`.
    services: Vec<Service>,
    /// The pods that are kept: their names and the reasons.
    kept: Vec<(String, String)>,
}

/// Finds Porch's pods and Services that nobody uses, and the reasons to keep others. `servers` are
/// the porch-servers that may use them. The caller must make sure that no function runner of Porch
/// is running.
pub(super) fn leftovers(pods: &[Pod], services: &[Service], servers: &[Running]) -> Leftovers {
    let mut left = Leftovers::default();
    let mut used = BTreeSet::new();
    for pod in pods {
        match is_legacy(pod).then(|| why_in_use(pod, servers)) {
            Some(None) => left.pods.push(pod.clone()),
            Some(Some(reason)) => {
                left.kept.push((pod.name_any(), reason));
                used.extend(pod.labels().get(IMAGE));
            }
            None => used.extend(pod.labels().get(IMAGE)),
        }
    }
    let services = services.iter().filter(|service| is_legacy_service(service));
    left.services = services.filter(|service| !used.contains(&service.name_any())).cloned().collect();
    left
}

/// Recognises Porch's pods by label and annotation. Pods with an owner or with the label
/// [`MANAGED_BY`] are excluded. If Porch's warm-up started the pod, the pod's name is the value of
/// its label [`IMAGE`]. If a call started the pod, the API server generated the name from that
/// value.
fn is_legacy(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    pod.labels().get(IMAGE).is_some_and(|id| is_named_after(&pod.name_any(), id))
        && !pod.labels().contains_key(MANAGED_BY)
        && pod.annotations().contains_key(TEMPLATE_VERSION)
        && pod.owner_references().is_empty()
        && containers.any(|container| container.name == CONTAINER)
}

fn is_named_after(name: &str, id: &str) -> bool {
    let base: String = format!("{id}-").chars().take(MAX_BASE).collect();
    let generated = name.strip_prefix(&base).is_some_and(|rest| {
        rest.len() == RANDOM_SUFFIX && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    !id.is_empty() && (name == id || generated)
}

/// Recognises Porch's Services: the name is the value of the label [`IMAGE`] in the selector.
fn is_legacy_service(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selected = selector.and_then(|selector| selector.get(IMAGE));
    selected.is_some()
        && selected == service.metadata.name.as_ref()
        && !service.labels().contains_key(MANAGED_BY)
        && service.owner_references().is_empty()
}

/// Prints the unused objects and deletes them if the user confirms. `yes` skips the question.
/// Returns false if a deletion failed.
pub(super) async fn clean(cluster: &Cluster, yes: bool) -> Result<bool, Failure> {
    let (facts, found) = find(cluster).await?;
    let namespace = &facts.functions;
    output::show(&found.listed(namespace));
    if found.is_empty() {
        output::show(&format!("namespace {namespace} has no unused objects of Porch to delete\n"));
        return Ok(true);
    }
    if !yes && !user_agrees(&found) {
        note(format_args!("nothing was deleted; --yes deletes without asking"));
        return Ok(true);
    }
    // The user may have answered late, so check again.
    let (_, still) = find(cluster).await?;
    let mut all_deleted = true;
    let mut deleted = |what: String, outcome: Result<(), String>| match outcome {
        Ok(()) => output::show(&format!("{what} deleted\n")),
        Err(error) => {
            note(format_args!("{what}: {error}"));
            all_deleted = false;
        }
    };
    for pod in found.pods.iter().filter(|pod| still.pods.iter().any(|other| other.uid() == pod.uid())) {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        deleted(format!("pod/{}", pod.name_any()), delete(&pods, pod).await);
    }
    let is_still = |service: &&Service| still.services.iter().any(|other| other.uid() == service.uid());
    for service in found.services.iter().filter(is_still) {
        deleted(format!("service/{}", service.name_any()), delete_service(cluster, namespace, service).await);
    }
    Ok(all_deleted)
}

/// Collects the facts and the unused objects. Fails if a function runner of Porch may still need
/// the objects.
async fn find(cluster: &Cluster) -> Result<(Facts, Leftovers), Failure> {
    let what = format!("checking namespace {}", cluster.namespace);
    let facts = report_if_slow(&what, Box::pin(gather(cluster))).await?;
    let functions = &facts.functions;
    let pods = facts.function_pods.as_ref().map_err(Failure::new)?;
    let services = cluster.with_namespace(functions).all("Services", ListParams::default()).await?;
    let mut left = leftovers(pods, &services, &[]);
    if !left.is_empty() {
        left = leftovers(pods, &services, &servers(cluster, &facts).await.map_err(Failure::new)?);
    }
    Ok((facts, left))
}

/// Returns the porch-servers that may use some of the objects. `Err` says why nothing may be
/// deleted: a function runner of Porch, in any namespace, may still need all objects.
async fn servers(cluster: &Cluster, facts: &Facts) -> Result<Vec<Running>, String> {
    require_our_runner(facts)?;
    let api: Api<Deployment> = Api::all(cluster.client.clone());
    let deployments =
        cluster.list(&api, "the Deployments of all namespaces", ListParams::default(), MAX_DEPLOYMENTS);
    let deployments = deployments.await.map_err(|error| {
        format!(
            "{error}; this needs a ClusterRole that may list deployments of group apps. {MAY_RUN_ELSEWHERE}"
        )
    })?;
    let evaluators = deployments.iter().filter_map(|deployment| evaluator_of(&Workload::from(deployment)));
    let mut servers = Vec::new();
    for evaluator in evaluators.filter(|evaluator| evaluator.may_use(&facts.functions)) {
        if evaluator.is_server {
            servers.extend(running(cluster, &evaluator, &facts.functions).await);
        } else {
            require_unneeded(cluster, facts, &evaluator).await?;
        }
    }
    Ok(servers)
}

/// Fails unless our runner runs in our namespace. A Deployment with the name of Porch's runner may
/// run either program, so all its pods must identify themselves as our runner.
fn require_our_runner(facts: &Facts) -> Result<(), String> {
    let Some(runner) = facts.installed.runner.as_ref().filter(|runner| runner.flags.is_ok()) else {
        let namespace = &facts.namespace;
        return Err(format!(
            "namespace {namespace} has no porch-fn runner; see -n. Porch's own function runner needs these pods as \
             long as it runs"
        ));
    };
    let mut answers = facts.runners.iter().map(|runner| &runner.answer);
    if facts.runners.is_empty() || !answers.all(|answer| answer.as_ref().is_ok_and(|answer| answer.page)) {
        return Err(format!(
            "Deployment {} may run Porch's own function runner, which needs these pods: not every pod of this \
             Deployment has identified itself as a porch-fn runner",
            runner.workload.name
        ));
    }
    Ok(())
}

/// Fails if the function runner `runner` may need the pods. If Porch's runner was replaced by ours
/// in the same Deployment, terminating pods may still run Porch's.
async fn require_unneeded(cluster: &Cluster, facts: &Facts, runner: &Evaluator) -> Result<(), String> {
    let Workload { namespace, name, .. } = &runner.workload;
    let known = facts.installed.runner.as_ref().map(|runner| &runner.workload.name);
    let is_ours = *namespace == facts.namespace && known == Some(name);
    if runner.workload.pods > 0 && !is_ours {
        return Err(format!(
            "Deployment {name} in namespace {namespace} may be Porch's own function runner, and may need these pods. \
             If it is Porch's, stop it when nothing calls it any more: kubectl -n {namespace} scale deployment {name} \
             --replicas=0. If it is a porch-fn runner, delete the pods with the kubectl command in docs/migrate.md"
        ));
    }
    let pods = processes(cluster, runner).await;
    let pods = pods.map_err(|error| format!("{error}. {MAY_RUN_ELSEWHERE}"))?;
    if pods.iter().any(|pod| !is_ours || pod.metadata.deletion_timestamp.is_some()) {
        return Err(format!(
            "Deployment {name} in namespace {namespace} may be or may have been Porch's own function runner. Some of \
             its pods still terminate, and may use these function pods: kubectl -n {namespace} get pods"
        ));
    }
    Ok(())
}

/// Asks the user for confirmation. Without a terminal, the answer is no.
fn user_agrees(found: &Leftovers) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    print!("Delete these {} pods and {} Services? [y/N] ", found.pods.len(), found.services.len());
    let mut answer = String::new();
    let asked = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    asked.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Deletes only the listed object, not a new one of the same name. An object that is already gone
/// counts as deleted.
async fn delete<K>(api: &Api<K>, object: &K) -> Result<(), String>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let only = Preconditions { uid: object.uid(), resource_version: None };
    match bounded(api.delete(&object.name_any(), &DeleteParams::default().preconditions(only))).await {
        Err(error) if error.code() != Some(404) => Err(Causes(&error).to_string()),
        _ => Ok(()),
    }
}

/// Deletes a Service, unless it selects a pod that is not terminating.
async fn delete_service(cluster: &Cluster, namespace: &str, service: &Service) -> Result<(), String> {
    let selector = BTreeMap::from([(IMAGE.to_owned(), service.name_any())]);
    let selected = cluster.with_namespace(namespace).pods(&selector).await;
    let selected = selected.map_err(|error| error.to_string())?;
    if let Some(pod) = selected.iter().find(|pod| pod.metadata.deletion_timestamp.is_none()) {
        return Err(format!("not deleted, since pod {} may be in use", pod.name_any()));
    }
    delete(&Api::namespaced(cluster.client.clone(), namespace), service).await
}

// === impl Leftovers ===

impl Leftovers {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.services.is_empty()
    }

    /// Returns one line per object to delete, and one line per pod that is kept.
    fn listed(&self, namespace: &str) -> String {
        let mut text = String::new();
        for pod in &self.pods {
            let _ = writeln!(text, "pod/{} in {namespace}", pod.name_any());
        }
        for service in &self.services {
            let _ = writeln!(text, "service/{} in {namespace}", service.name_any());
        }
        for (pod, reason) in &self.kept {
            let _ = writeln!(text, "pod/{pod} in {namespace} is kept: {reason}");
        }
        text
    }
}
