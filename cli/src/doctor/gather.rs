//! Collects the facts from the cluster, and from the programs over forwarded ports.

use std::net::IpAddr;

use futures_util::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplate, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use porch_fn_kubernetes::{RequestError, bounded};
use porch_fn_runner_config::template::Template;
use porch_fn_runner_config::{BASE_POD_TEMPLATE, Flags};
use porch_fn_telemetry::Causes;

use super::facts::{Answer, Asked, Facts, MAX_ASKED, TemplateSource};
use super::installation::{Installation, Server, installation};
use super::porch::FUNCTIONS;
use super::rights::{Right, needed};
use super::running::running;
use crate::admin::AdminPort;
use crate::cluster::{ADMIN, Cluster, is_ready};
use crate::failure::Failure;

const MAX_CONCURRENT_REQUESTS: usize = 8;

pub(super) async fn gather(cluster: &Cluster) -> Result<Facts, Failure> {
    let deployments: Vec<Deployment> = cluster.all("Deployments", ListParams::default()).await?;
    let services: Vec<Service> = cluster.all("Services", ListParams::default()).await?;
    let installed = installation(&deployments);

    let flags = installed.runner_flags.as_ref();
    let functions = flags.map_or(FUNCTIONS, |flags| flags.pod_namespace.as_str()).to_owned();
    let pods = cluster.with_namespace(&functions).all("pods", ListParams::default()).await;
    let mut servers = Vec::new();
    for server in installed.servers.iter().filter(|server| server.may_use(&functions)) {
        servers.extend(running(cluster, server, &functions).await);
    }
    let status = async |router: &AdminPort| Ok(router.page("/status.json").await?.1);
    let routers = ask(cluster, installed.router.as_ref(), status).await?;
    // Finds out which runners are ours. Our `/config` page answers 400 to a request without an
    // image. Porch's runner has no such page.
    let is_ours = async |runner: &AdminPort| Ok(runner.get("/config").await?.0 == StatusCode::BAD_REQUEST);
    let runners = ask(cluster, installed.runner.as_ref(), is_ours).await?;
    let named = |service: Service| (service.name_any(), service.spec.unwrap_or_default());
    Ok(Facts {
        routers,
        runners,
        function_pods: pods.map_err(|error| error.to_string()),
        servers,
        rights: rights(cluster, &installed).await,
        template: template(cluster, flags, &functions).await,
        namespace: cluster.namespace.clone(),
        services: services.into_iter().map(named).collect(),
        functions,
        installed,
    })
}

/// Sends `question` to each pod of routers or runners, and requests its metrics.
async fn ask<T>(
    cluster: &Cluster,
    server: Option<&Server>,
    question: impl AsyncFn(&AdminPort) -> Result<T, Failure>,
) -> Result<Vec<Asked<T>>, Failure> {
    let Some(Server { workload, flags, .. }) = server else { return Ok(Vec::new()) };
    let mut pods = cluster.pods(&workload.selector).await?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.sort_by_key(ResourceExt::name_any);
    let question = &question;
    let asked = pods.iter().enumerate().map(|(index, pod)| async move {
        let answer = async {
            if index >= MAX_ASKED {
                return Err(format!("doctor queries only {MAX_ASKED} pods"));
            }
            let port = flags.as_ref().map_or_else(|_| ADMIN.of(None, pod), |flags| flags.admin_port);
            let forward = cluster.forward_to(pod, port).await.map_err(|error| error.to_string())?;
            let admin = AdminPort { kind: "router or runner", address: forward.address.to_string() };
            let failed = |error: Failure| forward.last_error().unwrap_or_else(|| error.to_string());
            let page = question(&admin).await.map_err(failed)?;
            let (status, metrics) = admin.get("/metrics").await.map_err(failed)?;
            let metrics = if status == StatusCode::OK { metrics } else { Vec::new().into() };
            Ok(Answer { page, metrics: String::from_utf8_lossy(&metrics).into_owned() })
        };
        Asked { pod: pod.name_any(), ips: ips(pod), ready: is_ready(pod), answer: answer.await }
    });
    Ok(stream::iter(asked).buffered(MAX_CONCURRENT_REQUESTS).collect().await)
}

fn ips(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    ips.filter_map(|one| one.ip.parse().ok()).collect()
}

async fn rights(cluster: &Cluster, installed: &Installation) -> Result<Vec<Right>, String> {
    let api: &Api<SubjectAccessReview> = &Api::all(cluster.client.clone());
    let asked = needed(installed, &cluster.namespace).into_iter().map(|mut right| async move {
        let review = bounded(api.create(&PostParams::default(), &right.review)).await;
        let review = review.map_err(|error| format!("the rights cannot be checked: {}", text(&error)))?;
        right.granted = review.status.is_some_and(|status| status.allowed);
        Ok(right)
    });
    stream::iter(asked).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await
}

async fn template(cluster: &Cluster, flags: Option<&Flags>, functions: &str) -> TemplateSource {
    let Some(flags) = flags else { return TemplateSource::BuiltIn };
    let name = &flags.function_pod_template;
    if name.is_empty() {
        let api: Api<PodTemplate> = Api::namespaced(cluster.client.clone(), functions);
        return match bounded(api.get_opt(BASE_POD_TEMPLATE)).await {
            Ok(Some(_)) => TemplateSource::Object,
            Ok(None) => TemplateSource::BuiltIn,
            Err(error) => TemplateSource::Unknown(text(&error)),
        };
    }
    let own = if flags.namespace.is_empty() { &cluster.namespace } else { &flags.namespace };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), own);
    let checked = match bounded(api.get_opt(name)).await {
        Ok(Some(config_map)) => Template::from_config_map(&config_map.data.unwrap_or_default()),
        Ok(None) => Err(format!("there is no such ConfigMap in namespace {own}")),
        Err(error) => return TemplateSource::Unknown(text(&error)),
    };
    TemplateSource::ConfigMap(name.clone(), checked.map(|template| template.warnings))
}

fn text(error: &RequestError) -> String {
    Causes(error).to_string()
}
