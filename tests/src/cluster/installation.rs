//! Installs router and runners from the base of deploy/ in two new namespaces. Tests choose images,
//! flags and the kind of discovery. The tests in `alone::deploy` apply deploy/ unchanged, like
//! users.

mod objects;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::ResourceExt;
use porch_fn_image::shard_key;
use porch_fn_ring::Ring;
use serde_json::{Value, json};

use super::{Cluster, Namespace};
use crate::fleet::PREFIX;
use crate::process::{eventually, get, is_healthy};

/// The routers' Deployment.
pub const ROUTER: &str = "function-router";
/// The runners' Deployment.
pub const RUNNERS: &str = "function-runner-shards";
const PORT: u16 = 9445;
const ADMIN_PORT: u16 = 9464;

/// How routers and runners find the runners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// By the DNS name of the headless Service.
    Dns,
    /// By the `EndpointSlices` of that Service.
    EndpointSlices,
}

/// The settings of an installation. To upgrade an installation, a test installs another plan over
/// it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub router_image: String,
    pub runner_image: String,
    pub wrapper_image: String,
    /// The number of runners at first. An upgrade does not change their number.
    pub runners: u32,
    pub discovery: Discovery,
    pub router_flags: Vec<String>,
    pub runner_flags: Vec<String>,
    /// Images that `--image-metadata` lists. Without a list, runners query the registry.
    pub listed_images: Option<Vec<String>>,
}

/// An installation in two namespaces. It is removed when this value is dropped.
pub struct Installation {
    /// The namespace of function pods.
    pub functions: Namespace,
    home: Namespace,
    address: SocketAddr,
}

// === impl Plan ===

impl Plan {
    /// Two routers and `runners` runners, with the images of this build.
    pub fn new(cluster: &Cluster, discovery: Discovery, runners: u32) -> Self {
        Self {
            router_image: cluster.programs_image(),
            runner_image: cluster.programs_image(),
            wrapper_image: cluster.wrapper_image(),
            runners,
            discovery,
            router_flags: Vec::new(),
            runner_flags: Vec::new(),
            listed_images: None,
        }
    }
}

// === impl Installation ===

impl Installation {
    /// Installs a plan, and waits until all pods are ready.
    pub async fn new(cluster: &Cluster, plan: &Plan) -> Self {
        let (home, functions) = (cluster.namespace().await, cluster.namespace().await);
        let unknown = ([0, 0, 0, 0], PORT).into();
        let mut new = Self { functions, home, address: unknown };
        let slices = json!({
            "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"],
        });
        let slices: PolicyRule = serde_json::from_value(slices).expect("a rule");
        for name in [ROUTER, RUNNERS] {
            new.home.account(name).await.allow(&new.home, std::slice::from_ref(&slices)).await;
        }
        let mut rest = new.base();
        rest.retain(|object| object["kind"] != "Deployment");
        new.apply(&rest).await;
        new.install(RUNNERS, plan).await;
        new.install(ROUTER, plan).await;
        new.scale(RUNNERS, plan.runners).await;
        new.rolled_out(ROUTER).await;
        let services = new.home.services().await;
        let service = services.iter().find(|service| service.metadata.name.as_deref() == Some(ROUTER));
        let ip = service.and_then(|service| service.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok());
        new.address = SocketAddr::new(ip.expect("the Service has an address"), PORT);
        new
    }

    /// The address that Porch would call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The namespace of the Deployments.
    pub fn home(&self) -> &Namespace {
        &self.home
    }

    /// Applies one Deployment of a plan, and does not wait for its pods.
    pub async fn install(&self, deployment: &str, plan: &Plan) {
        if let Some(images) = &plan.listed_images {
            self.apply(&[objects::image_metadata(images)]).await;
        }
        let mut base = self.base();
        base.retain(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == deployment);
        let registry = self.home.cluster().registry();
        self.apply(&[objects::planned(base.remove(0), plan, self.home.name(), registry)]).await;
    }

    fn base(&self) -> Vec<Value> {
        objects::base(self.home.name(), self.functions.name())
    }

    /// Scales a Deployment, and waits for the rollout.
    pub async fn scale(&self, deployment: &str, replicas: u32) {
        self.kubectl(&["scale", "deployment", deployment, &format!("--replicas={replicas}")]).await;
        self.rolled_out(deployment).await;
    }

    /// Restarts all pods of a Deployment, and waits for the rollout.
    pub async fn restart(&self, deployment: &str) {
        self.kubectl(&["rollout", "restart", "deployment", deployment]).await;
        self.rolled_out(deployment).await;
    }

    /// Waits until a Deployment's new pods are ready and its old pods are gone.
    pub async fn rolled_out(&self, deployment: &str) {
        self.kubectl(&["rollout", "status", "deployment", deployment, "--timeout=5m"]).await;
        self.home
            .wait_until("the old pods are gone", |pods: &[Pod]| {
                pods.iter().all(|pod| !of(pod, deployment) || alive(pod)).then_some(())
            })
            .await;
    }

    /// The pods of a Deployment that are not terminating.
    pub async fn pods_of(&self, deployment: &str) -> Vec<Pod> {
        let mut pods = self.home.pods().await;
        pods.retain(|pod| of(pod, deployment) && alive(pod));
        pods
    }

    /// Waits until every router lists exactly the Deployment's runners, all of them as healthy.
    pub async fn wait_routers_agree(&self) {
        eventually("every router has all runners", async || {
            let wanted: BTreeSet<_> =
                self.pods_of(RUNNERS).await.iter().map(|pod| format!("{}:{PORT}", ip(pod))).collect();
            for router in self.pods_of(ROUTER).await {
                let (status, page) =
                    get(SocketAddr::new(ip(&router).parse().ok()?, ADMIN_PORT), "/shards").await;
                let page: Value = serde_json::from_str(&page).ok().filter(|_| status == 200)?;
                let shards = page["shards"].as_array()?;
                let healthy = shards.iter().filter(|shard| is_healthy(shard));
                let healthy: BTreeSet<_> = healthy.filter_map(|shard| shard["address"].as_str()).collect();
                if shards.len() != wanted.len() || !wanted.iter().map(String::as_str).eq(healthy) {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// The runner that owns an image.
    pub async fn owner(&self, image: &str) -> Pod {
        let pods = self.pods_of(RUNNERS).await;
        let ring = Ring::new(pods.iter().map(|pod| format!("{}:{PORT}", ip(pod))));
        let owner = ring.owner(&shard_key(image, "", PREFIX)).expect("there are runners");
        let owner = pods.iter().find(|pod| format!("{}:{PORT}", ip(pod)) == owner);
        owner.expect("one of the runners").clone()
    }

    /// Runs `kubectl` in the namespace of the Deployments.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        let home = ["--namespace", self.home.name()];
        self.run(&[&home, args].concat(), "").await
    }

    /// Applies objects. Objects without a namespace go into the namespace of the Deployments.
    async fn apply(&self, objects: &[Value]) {
        let mut list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        for object in list["items"].as_array_mut().into_iter().flatten() {
            if object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = json!(self.home.name());
            }
        }
        self.run(&["apply", "--filename=-"], &list.to_string()).await;
    }

    async fn run(&self, args: &[&str], input: &str) -> String {
        let ended = self.home.cluster().kubectl_ok(args, input).await;
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

/// A change of the runners has reached all routers after this time. DNS answers have a TTL of 5 s
/// in the test cluster, and routers collect new runners for 2 s before they use them.
pub const SETTLE_TIME: Duration = Duration::from_secs(8);

fn of(pod: &Pod, deployment: &str) -> bool {
    pod.labels().get("app.kubernetes.io/name").is_some_and(|name| name == deployment)
}

/// Whether the pod is not terminating.
pub fn alive(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

fn ip(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default()
}
