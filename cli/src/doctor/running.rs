//! Finds the running porch-servers that start function pods, and the pods that each may use.
//!
//! A porch-server uses the pods that it has created. When it starts, it also adopts pods whose
//! annotation contains the current resourceVersion of its PodTemplate. It never uses other pods.

use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Api;
use porch_fn_kubernetes::bounded;
use porch_fn_runner_config::names::TEMPLATE_VERSION;
use porch_fn_telemetry::Causes;

use super::porch::Evaluator;
use crate::cluster::Cluster;

/// A running porch-server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Running {
    /// `NAMESPACE/DEPLOYMENT`.
    pub(super) name: String,
    /// Which pods it may use, or why that is unknown.
    pub(super) uses: Result<Uses, String>,
}

/// Facts that decide which pods a porch-server may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uses {
    /// Start time of the porch-server's oldest process.
    since: Time,
    /// Version of its PodTemplate, and the time of the template's last change.
    template: String,
    changed: Time,
}

/// Returns a running porch-server, and which pods in the namespace `functions` it may use. `None`
/// if the porch-server is scaled to 0 and its last pod is gone.
pub(super) async fn running(cluster: &Cluster, server: &Evaluator, functions: &str) -> Option<Running> {
    let pods = processes(cluster, server).await;
    if server.workload.pods == 0 && pods.as_ref().is_ok_and(Vec::is_empty) {
        return None;
    }
    let name = format!("{}/{}", server.workload.namespace, server.workload.name);
    let uses = match pods {
        Ok(pods) => uses(cluster, server, functions, &pods).await,
        Err(error) => Err(error),
    };
    Some(Running { name, uses })
}

async fn uses(cluster: &Cluster, server: &Evaluator, functions: &str, pods: &[Pod]) -> Result<Uses, String> {
    let since = started(pods, &server.container).ok_or("none of its pods has a start time")?;
    let name = &server.template;
    let api: Api<PodTemplate> = Api::namespaced(cluster.client.clone(), functions);
    let template = bounded(api.get_opt(name)).await;
    let template = template
        .map_err(|error| format!("PodTemplate {name} cannot be read: {}", Causes(&error)))?
        .ok_or_else(|| format!("there is no PodTemplate {name} in namespace {functions}"))?;
    let (template, changed) =
        version(&template).ok_or_else(|| format!("PodTemplate {name} has no time of its last change"))?;
    Ok(Uses { since, template, changed })
}

/// Returns an evaluator's pods that run or may start. These include terminating pods: their
/// processes serve until the pods are gone.
pub(super) async fn processes(cluster: &Cluster, evaluator: &Evaluator) -> Result<Vec<Pod>, String> {
    let workload = &evaluator.workload;
    if workload.selector.is_empty() {
        return Err(format!("Deployment {} has no matchLabels in its selector", workload.name));
    }
    let home = cluster.with_namespace(&workload.namespace);
    let mut pods = home.pods(&workload.selector).await.map_err(|error| error.to_string())?;
    // The API server keeps an evicted pod, but its processes have ended.
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    pods.retain(|pod| !matches!(phase(pod).as_deref(), Some("Failed" | "Succeeded")));
    Ok(pods)
}

/// Returns the earliest start time of a container of this name in these pods.
fn started(pods: &[Pod], container: &str) -> Option<Time> {
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    let ours = statuses.filter(|status| status.name == container);
    ours.filter_map(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone()).min()
}

/// Returns the version of a template and the time of its last change. `None` if no field manager
/// has a time: the template may then have changed at any time.
fn version(template: &PodTemplate) -> Option<(String, Time)> {
    let managers = template.metadata.managed_fields.iter().flatten();
    let changed = managers.filter_map(|manager| manager.time.clone()).max()?;
    Some((template.resource_version()?, changed))
}

/// Returns why one of these porch-servers may use the pod. `None`: none of them may.
pub(super) fn why_in_use(pod: &Pod, running: &[Running]) -> Option<String> {
    running.iter().find_map(|server| server.why_in_use(pod))
}

// === impl Running ===

impl Running {
    fn why_in_use(&self, pod: &Pod) -> Option<String> {
        let name = &self.name;
        let Uses { since, template, changed } = match &self.uses {
            Ok(uses) => uses,
            Err(unknown) => return Some(format!("{name} may use any pod: {unknown}")),
        };
        if pod.annotations().get(TEMPLATE_VERSION) == Some(template) {
            return Some(format!("{name} uses pods of its template's version"));
        }
        if changed >= since {
            return Some(format!(
                "{name} started before the last change of its template, so it may use pods of the previous version; \
                 restart it, then run this command again"
            ));
        }
        let is_older = pod.metadata.creation_timestamp.as_ref().is_some_and(|created| created < since);
        (!is_older).then(|| format!("{name} started before the pod, and may have created it"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn time(minute: u8) -> Time {
        serde_json::from_value(json!(format!("2026-01-01T00:{minute:02}:00Z"))).unwrap()
    }

    /// A porch-server that started at minute 20, with a template that was changed at minute
    /// `changed`.
    fn server(changed: u8) -> Running {
        let uses = Uses { since: time(20), template: "7".to_owned(), changed: time(changed) };
        Running { name: "home/porch-server".to_owned(), uses: Ok(uses) }
    }

    fn pod(version: &str, created: u8) -> Pod {
        let metadata = json!({
            "name": "a", "annotations": {TEMPLATE_VERSION: version}, "creationTimestamp": time(created),
        });
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn pods_that_no_running_server_created_or_adopted_are_unused() {
        let unknown = Running { uses: Err("forbidden".to_owned()), ..server(10) };
        for (version, created, server, part) in [
            ("inline-v1", 19, server(10), ""),
            ("7", 5, server(10), "its template's version"),
            ("6", 20, server(10), "may have created it"),
            ("6", 30, server(10), "may have created it"),
            ("inline-v1", 5, server(20), "started before the last change of its template"),
            ("inline-v1", 5, unknown, "may use any pod: forbidden"),
        ] {
            let reason = why_in_use(&pod(version, created), &[server]).unwrap_or_default();
            assert_eq!(reason.is_empty(), part.is_empty(), "{reason}");
            assert!(part.is_empty() || reason.contains("home/porch-server "), "{reason}");
            assert!(reason.contains(part), "{part}: {reason}");
        }
        let reason = why_in_use(&Pod::default(), &[server(10)]).unwrap();
        assert!(reason.ends_with("may have created it"), "{reason}");
        assert_eq!(why_in_use(&pod("7", 30), &[]), None, "no server runs");
    }

    #[test]
    fn the_oldest_process_and_the_last_change_of_the_template_decide() {
        let server = |name: &str, state: Value| -> Pod {
            let status = json!({"name": name, "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0});
            serde_json::from_value(json!({"metadata": {}, "status": {"containerStatuses": [status]}}))
                .unwrap()
        };
        let since = |minute| json!({"running": {"startedAt": time(minute)}});
        let pods = [
            server("other", since(1)),
            server("porch", since(9)),
            server("porch", since(8)),
            server("porch", json!({"waiting": {"reason": "CrashLoopBackOff"}})),
        ];
        assert_eq!(started(&pods, "porch"), Some(time(8)));
        assert_eq!(started(&pods[3..], "porch"), None);

        let template = |managed: Value| {
            let metadata = json!({"name": "a", "resourceVersion": "7", "managedFields": managed});
            version(&serde_json::from_value(json!({"metadata": metadata})).unwrap())
        };
        let managers = json!([{"time": time(3)}, {"time": time(5)}, {"manager": "a"}]);
        assert_eq!(template(managers), Some(("7".to_owned(), time(5))));
        assert_eq!(template(json!([])), None);
    }
}
