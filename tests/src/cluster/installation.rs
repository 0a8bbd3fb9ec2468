//! Router and runners in a cluster as the base of deploy/ has them, in namespaces of their own, so
//! that tests can choose programs, flags and the way of discovery. `alone::deploy` applies deploy/
//! as users do.

mod objects;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::PolicyRule;
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
    /// By the headless Service's DNS name.
    Dns,
    /// By its `EndpointSlices`.
    EndpointSlices,
}

/// What is to be installed. Another one over it is an upgrade.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The image with `/porch-fn-router`.
    pub router_image: String,
    /// The image with `/porch-fn-runner`.
    pub runner_image: String,
    /// The image with the wrapper-server.
    pub wrapper_image: String,
    /// How many runners at first. An upgrade leaves as many as there are.
    pub runners: u32,
    /// How they are found.
    pub discovery: Discovery,
    /// More flags for routers.
    pub router_flags: Vec<String>,
    /// More flags for runners.
    pub runner_flags: Vec<String>,
    /// Images that `--image-metadata` lists. None means that runners ask the registry.
    pub listed_images: Option<Vec<String>>,
}

/// An installation in namespaces of its own. Dropping it removes it.
pub struct Installation {
    /// Where function pods live.
    pub functions: Namespace,
    home: Namespace,
    address: SocketAddr,
}

// === impl Plan ===

impl Plan {
    /// The programs of this build, with two routers.
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
    /// Installs it and waits until all pods are ready.
    pub async fn new(cluster: &Cluster, plan: &Plan) -> Self {
        let (home, functions) = (cluster.namespace().await, cluster.namespace().await);
        let nowhere = ([0, 0, 0, 0], PORT).into();
        let mut new = Self { functions, home, address: nowhere };
        let slices = PolicyRule {
            api_groups: Some(vec!["discovery.k8s.io".to_owned()]),
            resources: Some(vec!["endpointslices".to_owned()]),
            verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
            ..PolicyRule::default()
        };
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

    /// Where Porch would call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The namespace of the Deployments.
    pub fn home(&self) -> &Namespace {
        &self.home
    }

    /// Applies one Deployment as planned. It is not waited for.
    pub async fn install(&self, deployment: &str, plan: &Plan) {
        if let Some(images) = &plan.listed_images {
            self.apply(&[objects::image_metadata(images)]).await;
        }
        let is_it =
            |object: &Value| object["kind"] == "Deployment" && object["metadata"]["name"] == deployment;
        let it = self.base().into_iter().find(is_it).expect("the base has it");
        let registry = self.home.cluster().registry();
        self.apply(&[objects::planned(it, plan, self.home.name(), registry)]).await;
    }

    fn base(&self) -> Vec<Value> {
        objects::base(self.home.name(), self.functions.name())
    }

    /// `kubectl scale`, and waits until the Deployment is as wished.
    pub async fn scale(&self, deployment: &str, replicas: u32) {
        self.kubectl(&["scale", "deployment", deployment, &format!("--replicas={replicas}")]).await;
        self.rolled_out(deployment).await;
    }

    /// `kubectl rollout restart`, and waits until all pods are new.
    pub async fn restart(&self, deployment: &str) {
        self.kubectl(&["rollout", "restart", "deployment", deployment]).await;
        self.rolled_out(deployment).await;
    }

    /// Waits until a Deployment's pods are as wished, and those that had to go are gone.
    pub async fn rolled_out(&self, deployment: &str) {
        self.kubectl(&["rollout", "status", "deployment", deployment, "--timeout=5m"]).await;
        self.home
            .until("those that had to go are gone", |pods: &[Pod]| {
                pods.iter().all(|pod| !of(pod, deployment) || alive(pod)).then_some(())
            })
            .await;
    }

    /// The pods of a Deployment that are not on their way out.
    pub async fn pods_of(&self, deployment: &str) -> Vec<Pod> {
        let mut pods = self.home.pods().await;
        pods.retain(|pod| of(pod, deployment) && alive(pod));
        pods
    }

    /// Waits until every router has exactly the Deployment's runners, and all of them are well.
    pub async fn routers_agree(&self) {
        eventually("every router has all runners", async || {
            let wanted: BTreeSet<_> =
                self.pods_of(RUNNERS).await.iter().map(|pod| format!("{}:{PORT}", ip(pod))).collect();
            for router in self.pods_of(ROUTER).await {
                let (status, page) =
                    get(SocketAddr::new(ip(&router).parse().ok()?, ADMIN_PORT), "/shards").await;
                let page: Value = serde_json::from_str(&page).ok().filter(|_| status == 200)?;
                let shards = page["shards"].as_array()?;
                let well = shards.iter().filter(|shard| is_healthy(shard));
                let well: BTreeSet<_> = well.filter_map(|shard| shard["address"].as_str()).collect();
                if shards.len() != wanted.len() || !wanted.iter().map(String::as_str).eq(well) {
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

    /// `kubectl` in the namespace of the Deployments.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        let home = ["--namespace", self.home.name()];
        self.run(&[&home, args].concat(), "").await
    }

    /// Applies objects, by default in the namespace of the Deployments.
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
        let ended = self.home.cluster().kubectl_succeeds(args, input).await;
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    /// Prints what a Deployment's pods have logged, when a test fails.
    pub async fn logs(&self, deployment: &str) -> String {
        let selector = format!("--selector=app.kubernetes.io/name={deployment}");
        self.kubectl(&["logs", &selector, "--prefix", "--tail=200"]).await
    }
}

/// How long load goes on before a change is thought to be over: what DNS hands out is good for 5 s
/// in the tests' cluster, arrivals are gathered for 2 s.
pub const SETTLES: Duration = Duration::from_secs(8);

fn of(pod: &Pod, deployment: &str) -> bool {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get("app.kubernetes.io/name"))
        .is_some_and(|name| name == deployment)
}

fn alive(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

fn ip(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default()
}
