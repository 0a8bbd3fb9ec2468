//! The way to an installation in a cluster: by kubeconfig to the API server, and from there through a forwarded port to
//! a pod, as `kubectl port-forward service/NAME` does it. Nothing has to be exposed for it.

mod forward;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config, ResourceExt};
use porch_fn_service::kubernetes::{Causes, RequestError, bounded, choose_proxy, set_user_agent};

pub(crate) use self::forward::Forward;

/// Where Porch and the manifests of deploy/ put the function runner.
const DEFAULT_NAMESPACE: &str = "porch-system";
/// The routers' Service.
pub(crate) const ROUTERS: &str = "function-router";
/// The Service that Porch calls as shipped: Porch's own runner's, the routers' that took it over, or that of a runner that
/// stands alone.
pub(crate) const CALLED: &str = "function-runner";
/// The runners' headless Service.
pub(crate) const SHARDS: &str = "function-runner-shards";
/// Port for calls.
pub(crate) const GRPC: Port = Port { service: Some(9445), names: &["grpc"], usual: 9445 };
/// The admin port, under our name and under that of Porch's manifests.
pub(crate) const ADMIN: Port = Port { service: None, names: &["admin", "metrics"], usual: 9464 };

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Which cluster, and where in it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Namespace of routers and runners, porch-system when not given; any of these flags has them reached through the
    /// cluster's API server
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to reach the API server; $KUBECONFIG or ~/.kube/config when not given
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; its current one when not given
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// A cluster, and the namespace where routers and runners are.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

/// A port of a container, however it is said.
pub(crate) struct Port {
    /// The Service's port that leads to it.
    service: Option<u16>,
    /// What it may be called.
    names: &'static [&'static str],
    /// What it is otherwise.
    usual: u16,
}

/// Where a command finds its server.
pub(crate) struct Reached {
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// What leads there, for as long as this lives.
    forward: Option<Forward>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("no way to a cluster: {}; see --kubeconfig, --context and $KUBECONFIG", Causes(.0))]
    Kubeconfig(Box<KubeconfigError>),
    #[error("no client for the API server can be made: {0}")]
    Client(Box<kube::Error>),
    #[error("{what} cannot be read: {}", Causes(.source))]
    Request { what: String, source: RequestError },
    #[error("there is no Service {service} in namespace {namespace}: see -n, or apply deploy/")]
    NoService { service: &'static str, namespace: String },
    #[error("no pod behind Service {service} is ready, of {pods}: kubectl -n {namespace} get pods")]
    NoPod { service: &'static str, namespace: String, pods: usize },
    #[error("no port of pod {pod} can be forwarded: {}; it takes the rights to get and create pods/portforward", Causes(.source))]
    Forward { pod: String, source: RequestError },
    #[error("no port of this machine can be listened on: {0}")]
    Listen(std::io::Error),
}

// === impl ClusterArgs ===

impl ClusterArgs {
    /// Whether the user asked for a cluster.
    fn are_given(&self) -> bool {
        self.namespace.is_some() || self.kubeconfig.is_some() || self.context.is_some()
    }

    /// `port` of a pod behind the first of `services` that there is, if the user asked for a cluster, else `address`.
    pub(crate) async fn reach(
        &self,
        address: String,
        services: &[&'static str],
        port: &Port,
    ) -> Result<Reached, ClusterError> {
        if !self.are_given() {
            return Ok(Reached { address, forward: None });
        }
        let forward = self.connect().await?.forward(services, port).await?;
        Ok(Reached { address: forward.address.to_string(), forward: Some(forward) })
    }

    /// The way to it. Whether anybody answers is not asked.
    pub(crate) async fn connect(&self) -> Result<Cluster, ClusterError> {
        let kubeconfig = |error| ClusterError::Kubeconfig(Box::new(error));
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(kubeconfig)?;
                Config::from_custom_kubeconfig(file, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.map_err(kubeconfig)?;
        choose_proxy(&mut config);
        set_user_agent(&mut config, "porch-fn");
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // A forwarded port is silent while a function runs. Requests have bounds of their own.
        config.read_timeout = None;
        let client = Client::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))?;
        let namespace = self.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Cluster { client, namespace })
    }
}

// === impl Reached ===

impl Reached {
    /// Whether the address only stands for one in the cluster.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.forward.is_some()
    }

    /// Why a command failed that was made through this.
    pub(crate) fn explain(&self, error: impl Display) -> String {
        let Some(forward) = &self.forward else {
            return format!("{error}; see --address, and -n for a cluster");
        };
        let trouble = forward.trouble().map(|trouble| format!(": {trouble}")).unwrap_or_default();
        format!("{error} (this is a forwarded port of pod {}{trouble})", forward.pod)
    }
}

// === impl Cluster ===

impl Cluster {
    /// A port of this machine that leads to `port` of a ready pod behind the first of `services` that there is.
    pub(crate) async fn forward(
        &self,
        services: &[&'static str],
        port: &Port,
    ) -> Result<Forward, ClusterError> {
        let (service, found) = self.service(services).await?;
        let selector = found.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
        let pods = self.pods(&selector).await?;
        let Some(pod) = pods.iter().find(|pod| is_ready(pod)) else {
            let namespace = self.namespace.clone();
            return Err(ClusterError::NoPod { service, namespace, pods: pods.len() });
        };
        self.forward_to(pod, port.of(Some(&found), pod)).await
    }

    /// A port of this machine that leads to `port` of `pod`.
    pub(crate) async fn forward_to(&self, pod: &Pod, port: u16) -> Result<Forward, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        Forward::start(pods, pod.name_any(), port).await
    }

    async fn service(&self, names: &[&'static str]) -> Result<(&'static str, Service), ClusterError> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        for &name in names {
            let found = bounded(api.get_opt(name)).await.map_err(|source| {
                let what = format!("Service {name} in namespace {}", self.namespace);
                ClusterError::Request { what, source }
            })?;
            if let Some(service) = found {
                return Ok((name, service));
            }
        }
        let service = names.first().copied().unwrap_or_default();
        Err(ClusterError::NoService { service, namespace: self.namespace.clone() })
    }

    /// Those that a selector selects; none by one that is empty.
    pub(crate) async fn pods(&self, selector: &BTreeMap<String, String>) -> Result<Vec<Pod>, ClusterError> {
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        let terms: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = bounded(api.list(&ListParams::default().labels(&terms.join(",")))).await;
        let listed = listed.map_err(|source| ClusterError::Request {
            what: format!("the pods of namespace {}", self.namespace),
            source,
        })?;
        Ok(listed.items)
    }
}

/// Passes on all objects of an API, `page` for each request; `false` if there are more
/// than `max` pages.
pub(crate) async fn each<K>(
    api: &Api<K>,
    page: u32,
    max: u32,
    mut take: impl FnMut(K),
) -> Result<bool, RequestError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = ListParams::default().limit(page);
    for _ in 0..max {
        let listed = bounded(api.list(&params)).await?;
        listed.items.into_iter().for_each(&mut take);
        match listed.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// Whether a pod serves, and is not on its way out.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

// === impl Port ===

impl Port {
    /// Its number in `pod`: where the Service's port leads, else the container port of its name, else the usual one.
    pub(crate) fn of(&self, service: Option<&Service>, pod: &Pod) -> u16 {
        let ports = service.and_then(|service| service.spec.as_ref()?.ports.as_ref());
        let led = ports.into_iter().flatten().find(|port| Some(port.port) == self.service.map(i32::from));
        let target = led.map(|port| port.target_port.clone().unwrap_or(IntOrString::Int(port.port)));
        let number = match target {
            Some(IntOrString::Int(number)) => Some(number),
            Some(IntOrString::String(name)) => container_port(pod, &[name.as_str()]),
            None => container_port(pod, self.names),
        };
        number.and_then(|number| u16::try_from(number).ok()).unwrap_or(self.usual)
    }
}

fn container_port(pod: &Pod, names: &[&str]) -> Option<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .find(|port| port.name.as_deref().is_some_and(|name| names.contains(&name)))
        .map(|port| port.container_port)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ports: &serde_json::Value) -> Pod {
        let containers = json!([{"name": "sidecar"}, {"name": "runner", "ports": ports}]);
        serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers}})).unwrap()
    }

    fn service(ports: &serde_json::Value) -> Service {
        serde_json::from_value(json!({"metadata": {}, "spec": {"ports": ports}})).unwrap()
    }

    #[test]
    fn ports_are_found_as_kubernetes_finds_them() {
        let named =
            pod(&json!([{"name": "grpc", "containerPort": 7}, {"name": "metrics", "containerPort": 8}]));
        let by_name = service(&json!([{"port": 1, "targetPort": 5}, {"port": 9445, "targetPort": "grpc"}]));
        let by_number = service(&json!([{"port": 9445, "targetPort": 9}]));
        let same = service(&json!([{"port": 9445}]));
        assert_eq!(GRPC.of(Some(&by_name), &named), 7);
        assert_eq!(GRPC.of(Some(&by_number), &named), 9);
        assert_eq!(GRPC.of(Some(&same), &named), 9445);
        assert_eq!(GRPC.of(None, &named), 7);
        assert_eq!(ADMIN.of(Some(&by_name), &named), 8);
        assert_eq!(ADMIN.of(None, &pod(&json!([]))), 9464);
    }

    #[test]
    fn who_is_on_the_way_out_is_not_ready() {
        let pod = |meta, status: &str| -> Pod {
            let conditions = json!([{"type": "Ready", "status": status}]);
            serde_json::from_value(json!({"metadata": meta, "status": {"conditions": conditions}})).unwrap()
        };
        assert!(is_ready(&pod(json!({}), "True")));
        assert!(!is_ready(&pod(json!({}), "False")));
        assert!(!is_ready(&pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "True")));
        assert!(!is_ready(&Pod::default()));
    }
}
