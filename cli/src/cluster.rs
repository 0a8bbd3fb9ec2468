//! Connects to an installation in a cluster. The API server forwards a port to a pod, like
//! `kubectl port-forward service/NAME`. So no Service has to be exposed outside the cluster.

mod forward;

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config, Resource, ResourceExt};
use porch_fn_kubernetes::{RequestError, bounded, choose_proxy, set_user_agent};
use porch_fn_telemetry::Causes;
use serde::de::DeserializeOwned;

use self::forward::Forward;
use crate::failure::Failure;

/// The namespace in which Porch's manifests and those of deploy/ install the function runner.
const DEFAULT_NAMESPACE: &str = "porch-system";
/// The routers' Service.
pub(crate) const ROUTERS: &str = "function-router";
/// The Service that Porch calls by default. It selects Porch's own function runner, our routers if
/// they replaced it, or our only runner if there are no routers.
pub(crate) const CALLED: &str = "function-runner";
/// The runners' headless Service.
pub(crate) const SHARDS: &str = "function-runner-shards";
/// The gRPC port that serves calls.
pub(crate) const GRPC: Port = Port { number: 9445, names: &["grpc"] };
/// The admin port: `admin` in our manifests, `metrics` in Porch's.
pub(crate) const ADMIN: Port = Port { number: 9464, names: &["admin", "metrics"] };

/// Number of objects per list request.
const PAGE: u32 = 500;
/// Maximum number of objects of one kind that [`Cluster::all`] reads.
const MAX_OBJECTS: u32 = 5000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Flags that select a cluster and a namespace.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Namespace of routers and runners; default: porch-system. With any of these three flags,
    /// porch-fn connects through the cluster's API server. Without them, doctor and porch-config use
    /// kubectl's cluster, and the other commands use --address
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to reach the API server; default: $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; default: its current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// A cluster, and the namespace to read.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// URL of the API server.
    pub(crate) server: String,
}

/// How to find a port of a container.
pub(crate) struct Port {
    /// The Service's port. The container's port is the same, unless the Service's target port or a
    /// port name gives another.
    number: u16,
    /// Names that the container port may have.
    names: &'static [&'static str],
}

/// The address of the server that a command calls.
pub(crate) struct Reached {
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// The port forward behind the address, if any. Dropping it ends the forwarding.
    pub(crate) forward: Option<Forward>,
}

// === impl ClusterArgs ===

impl ClusterArgs {
    /// Without cluster flags, returns `address`. Otherwise forwards `port` of a router, or of the
    /// only runner if there are no routers.
    pub(crate) async fn reach(&self, address: String, port: &Port) -> Result<Reached, Failure> {
        if self.namespace.is_none() && self.kubeconfig.is_none() && self.context.is_none() {
            return Ok(Reached { address, forward: None });
        }
        let cluster = self.connect().await?;
        let forward = cluster.forward(port).await?;
        Ok(Reached { address: forward.address.to_string(), forward: Some(forward) })
    }

    /// Creates a client for the cluster. Does not check that the API server answers.
    pub(crate) async fn connect(&self) -> Result<Cluster, Failure> {
        let kubeconfig = |error: KubeconfigError| {
            let flags = "see --kubeconfig, --context and $KUBECONFIG";
            // kube puts a path that it already quotes into quotes.
            let error = Causes(&error).to_string().replace("'\"", "\"").replace("\"'", "\"");
            Failure::unreachable(format!("no cluster: {error}; {flags}"))
        };
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let file = self.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        let config = Config::from_custom_kubeconfig(file.map_err(kubeconfig)?, &options).await;
        let mut config = config.map_err(kubeconfig)?;
        choose_proxy(&mut config);
        set_user_agent(&mut config, "porch-fn");
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // No read timeout: a forwarded port carries no bytes while a function runs. Requests have
        // their own timeouts.
        config.read_timeout = None;
        // The URL may contain a name and a password.
        let server = &config.cluster_url;
        let host = server.authority().and_then(|authority| authority.as_str().rsplit('@').next());
        let (scheme, path) = (server.scheme_str().unwrap_or("https"), server.path().trim_end_matches('/'));
        let server = format!("{scheme}://{}{path}", host.unwrap_or_default());
        let client = Client::try_from(config).map_err(|error| {
            Failure::unreachable(format!("cannot create a client for the API server: {error}"))
        })?;
        let namespace = self.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Cluster { client, namespace, server })
    }
}

// === impl Reached ===

impl Reached {
    /// Adds to a call's error the pod that received the call, or the flags that set the address.
    pub(crate) fn explain(&self, error: impl Display) -> Failure {
        let Some(forward) = &self.forward else {
            return Failure::unreachable(format!("{error}; see --address, and -n for a cluster"));
        };
        let cause = forward.last_error().map(|cause| format!(": {cause}")).unwrap_or_default();
        Failure::unreachable(format!("{error} (this is a forwarded port of pod {}{cause})", forward.pod))
    }
}

// === impl Cluster ===

impl Cluster {
    /// Returns the same cluster with another namespace.
    pub(crate) fn with_namespace(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), client: self.client.clone(), server: self.server.clone() }
    }

    /// Forwards a local port to `port` of a ready pod of [`Self::service`].
    async fn forward(&self, port: &Port) -> Result<Forward, Failure> {
        let service = self.service().await?;
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
        let pods = self.pods(&selector).await?;
        let Some(pod) = pods.iter().find(|pod| is_ready(pod)) else {
            let (namespace, count, name) = (&self.namespace, pods.len(), service.name_any());
            return Err(Failure::unreachable(format!(
                "none of the {count} pods of Service {name} is ready: kubectl -n {namespace} get pods"
            )));
        };
        self.forward_to(pod, port.of(Some(&service), pod)).await
    }

    /// Forwards a local port to `port` of `pod`.
    pub(crate) async fn forward_to(&self, pod: &Pod, port: u16) -> Result<Forward, Failure> {
        let pods = Api::namespaced(self.client.clone(), &self.namespace);
        Forward::start(pods, pod.name_any(), port).await
    }

    /// Returns the Service of the routers, else the one of the only runner.
    async fn service(&self) -> Result<Service, Failure> {
        let (api, namespace) = (Api::namespaced(self.client.clone(), &self.namespace), &self.namespace);
        for name in [ROUTERS, CALLED] {
            let what = format!("Service {name} in namespace {namespace}");
            if let Some(service) = bounded(api.get_opt(name)).await.map_err(self.unread(&what))? {
                return Ok(service);
            }
        }
        let fix = "see -n, or apply deploy/";
        Err(Failure::unreachable(format!("there is no Service {ROUTERS} in namespace {namespace}: {fix}")))
    }

    /// Lists the pods that `selector` matches. An empty selector matches no pods here.
    pub(crate) async fn pods(&self, selector: &BTreeMap<String, String>) -> Result<Vec<Pod>, Failure> {
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        let terms: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.all("pods", ListParams::default().labels(&terms.join(","))).await
    }

    /// Lists the namespace's objects of kind `K`, at most [`MAX_OBJECTS`]. `what` names the kind.
    pub(crate) async fn all<K>(&self, what: &str, params: ListParams) -> Result<Vec<K>, Failure>
    where
        K: Clone + Debug + DeserializeOwned + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        self.list(&api, &format!("the {what} of namespace {}", self.namespace), params, MAX_OBJECTS).await
    }

    /// Lists objects. Fails if there are more than `max`, rounded up to whole pages. `what` names the
    /// objects in an error.
    pub(crate) async fn list<K: Clone + Debug + DeserializeOwned>(
        &self,
        api: &Api<K>,
        what: &str,
        params: ListParams,
        max: u32,
    ) -> Result<Vec<K>, Failure> {
        let mut params = params.limit(PAGE);
        let mut objects = Vec::new();
        for _ in 0..max.div_ceil(PAGE) {
            let listed = bounded(api.list(&params)).await.map_err(self.unread(what))?;
            objects.extend(listed.items);
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(objects),
            }
        }
        Err(Failure::unreachable(format!("{what} cannot be read: there are more than {max}")))
    }

    /// Converts a request's error to a [`Failure`] that names the requested object, and the API server
    /// if that did not answer.
    pub(crate) fn unread(&self, what: &str) -> impl Fn(RequestError) -> Failure {
        move |error| {
            let text = format!("{what} cannot be read: {}", Causes(&error));
            Failure::unreachable(match error.code() {
                Some(_) => text,
                None => format!("{text} (API server {}); see --kubeconfig and --context", self.server),
            })
        }
    }
}

/// Returns whether a pod is ready and not terminating.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

// === impl Port ===

impl Port {
    /// Returns the port's number in `pod`: the Service's target port, else the container port with
    /// one of the names, else [`Port::number`].
    pub(crate) fn of(&self, service: Option<&Service>, pod: &Pod) -> u16 {
        let ports = service.and_then(|service| service.spec.as_ref()?.ports.as_deref()).unwrap_or_default();
        let port = ports.iter().find(|port| port.port == i32::from(self.number));
        let number = match port.map(|port| port.target_port.clone().unwrap_or(IntOrString::Int(port.port))) {
            Some(IntOrString::Int(number)) => Some(number),
            Some(IntOrString::String(name)) => container_port(pod, &[name.as_str()]),
            None => container_port(pod, self.names),
        };
        number.and_then(|number| u16::try_from(number).ok()).unwrap_or(self.number)
    }
}

fn container_port(pod: &Pod, names: &[&str]) -> Option<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref().is_some_and(|name| names.contains(&name)))?;
    Some(found.container_port)
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
    fn container_ports_are_resolved_like_in_kubernetes() {
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
        assert_eq!(ADMIN.of(Some(&service(&json!([{"port": 9464, "targetPort": 5}]))), &named), 5);
        assert_eq!(ADMIN.of(None, &pod(&json!([]))), 9464);
    }

    #[test]
    fn a_terminating_pod_is_not_ready() {
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
