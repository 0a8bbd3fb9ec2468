//! Asks the cluster, and the programs by forwarded ports, for the facts.

use std::net::IpAddr;

use futures_util::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplate, Service};
use kube::api::{Api, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use porch_fn_service::kubernetes::{Causes, RequestError, bounded};
use serde::de::DeserializeOwned;

use super::facts::{Asked, Facts, RouterAnswer, RunnerAnswer, Silence, Template};
use super::installation::{Installation, Program, installation};
use super::porch::FUNCTIONS;
use super::rights::{Right, needed};
use super::running::running;
use crate::admin::{self, AdminError, Server};
use crate::cluster::{ADMIN, Cluster, ClusterError, is_ready};
use crate::progress::Progress;

/// Pods of a Deployment that are asked; of more, the first by name.
pub(super) const MAX_ASKED: usize = 30;
/// Requests at once.
const AT_ONCE: usize = 8;
/// Function pods looked at.
const MAX_FUNCTION_PODS: u32 = 5000;

pub(super) async fn gather(cluster: &Cluster) -> Result<Facts, ClusterError> {
    let _progress = Progress::start(format!("looking at namespace {}", cluster.namespace));
    let namespace = &cluster.namespace;
    let deployments: Vec<Deployment> = all(cluster, namespace, "Deployments").await?;
    let services: Vec<Service> = all(cluster, namespace, "Services").await?;
    let installed = installation(&deployments);

    let flags = installed.runner.as_ref().and_then(|runner| runner.flags.as_ref().ok());
    let functions = flags.map_or(FUNCTIONS, |flags| flags.pod_namespace.as_str()).to_owned();
    let function_pods = function_pods(cluster, &functions).await;
    let mut servers = Vec::new();
    for server in installed.servers.iter().filter(|server| server.may_use(&functions)) {
        servers.extend(running(cluster, server, &functions).await);
    }
    Ok(Facts {
        routers: ask(cluster, installed.router.as_ref(), |flags| flags.admin_port, router).await?,
        runners: ask(cluster, installed.runner.as_ref(), |flags| flags.admin_port, runner).await?,
        more_function_pods: function_pods.as_ref().is_ok_and(|(_, more)| *more),
        function_pods: function_pods.map(|(pods, _)| pods),
        servers,
        rights: rights(cluster, &installed).await,
        template: template(cluster, flags, &functions).await,
        namespace: namespace.clone(),
        services,
        functions,
        installed,
    })
}

async fn all<K>(cluster: &Cluster, namespace: &str, what: &str) -> Result<Vec<K>, ClusterError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let listed = bounded(api.list(&ListParams::default())).await;
    let what = || format!("the {what} of namespace {namespace}");
    Ok(listed.map_err(|source| ClusterError::Request { what: what(), source })?.items)
}

/// Asks the pods of a program.
async fn ask<F, T>(
    cluster: &Cluster,
    program: Option<&Program<F>>,
    admin_port: impl Fn(&F) -> u16,
    question: impl AsyncFn(Server) -> Result<T, AdminError>,
) -> Result<Vec<Asked<T>>, ClusterError> {
    let Some(program) = program else { return Ok(Vec::new()) };
    let mut pods = cluster.pods(&program.selector).await?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.sort_by_key(ResourceExt::name_any);
    let flags = program.flags.as_ref().ok();
    let (question, known_port) = (&question, flags.map(admin_port));
    let asked = pods.iter().enumerate().map(|(index, pod)| async move {
        let answer = async {
            if index >= MAX_ASKED {
                return Err(Silence::NotAsked);
            }
            let port = known_port.unwrap_or_else(|| ADMIN.of(None, pod));
            let forward = cluster.forward_to(pod, port).await;
            let forward = forward.map_err(|error| Silence::Failed(error.to_string()))?;
            let server = Server { kind: "router or runner", address: forward.address.to_string() };
            let failed = |error: AdminError| forward.trouble().unwrap_or_else(|| error.to_string());
            question(server).await.map_err(|error| Silence::Failed(failed(error)))
        };
        Asked { pod: pod.name_any(), ips: ips(pod), ready: is_ready(pod), answer: answer.await }
    });
    Ok(stream::iter(asked).buffered(AT_ONCE).collect().await)
}

fn ips(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    ips.into_iter().flatten().filter_map(|one| one.ip.parse().ok()).collect()
}

async fn router(server: Server) -> Result<RouterAnswer, AdminError> {
    let (_, status) = admin::fetch(&server, "/status.json").await?.page(&server, "/status.json")?;
    Ok(RouterAnswer { status, metrics: metrics(&server).await? })
}

async fn runner(server: Server) -> Result<RunnerAnswer, AdminError> {
    // It asks for an image; Porch's has no such page.
    let ours = admin::fetch(&server, "/config").await?.status == StatusCode::BAD_REQUEST;
    Ok(RunnerAnswer { ours, metrics: metrics(&server).await? })
}

async fn metrics(server: &Server) -> Result<String, AdminError> {
    let answer = admin::fetch(server, "/metrics").await?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(if answer.status == StatusCode::OK { text } else { String::new() })
}

/// Pods, and whether there are more.
async fn function_pods(cluster: &Cluster, namespace: &str) -> Result<(Vec<Pod>, bool), String> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let listed = bounded(api.list(&ListParams::default().limit(MAX_FUNCTION_PODS))).await;
    let more = |next: Option<String>| next.is_some_and(|token| !token.is_empty());
    listed.map(|list| (list.items, more(list.metadata.continue_))).map_err(|error| said(&error))
}

async fn rights(cluster: &Cluster, installed: &Installation) -> Result<Vec<Right>, String> {
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let (api, home) = (&api, cluster.namespace.as_str());
    let asked = needed(installed, home).into_iter().map(|mut right| async move {
        let review = bounded(api.create(&PostParams::default(), &right.review(home))).await;
        let review =
            review.map_err(|error| format!("nobody may ask here who may do what: {}", said(&error)))?;
        right.granted = review.status.is_some_and(|status| status.allowed);
        Ok(right)
    });
    let asked: Vec<Result<_, String>> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    asked.into_iter().collect()
}

async fn template(cluster: &Cluster, flags: Option<&porch_fn_runner::Flags>, functions: &str) -> Template {
    let Some(flags) = flags else { return Template::BuiltIn };
    let name = &flags.function_pod_template;
    if name.is_empty() {
        let api: Api<PodTemplate> = Api::namespaced(cluster.client.clone(), functions);
        return match bounded(api.get_opt(porch_fn_runner::pods::kubernetes::BASE_POD_TEMPLATE)).await {
            Ok(Some(_)) => Template::Object,
            Ok(None) => Template::BuiltIn,
            Err(error) => Template::Unknown(said(&error)),
        };
    }
    let own = if flags.namespace.is_empty() { &cluster.namespace } else { &flags.namespace };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), own);
    let checked = match bounded(api.get_opt(name)).await {
        Ok(Some(config_map)) => {
            porch_fn_runner::pods::kubernetes::check_template(&config_map.data.unwrap_or_default())
        }
        Ok(None) => Err(format!("there is no such ConfigMap in namespace {own}")),
        Err(error) => return Template::Unknown(said(&error)),
    };
    Template::ConfigMap(name.clone(), checked)
}

fn said(error: &RequestError) -> String {
    Causes(error).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_an_address_of_each_family() {
        let status = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00:0::1"}]});
        let pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
        let expected: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(ips(&pod), expected);
        assert!(ips(&Pod::default()).is_empty());
    }
}
