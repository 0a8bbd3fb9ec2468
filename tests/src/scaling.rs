//! Routers and runners as processes, scaled up and down on a real cluster as a Deployment would do
//! it: a runner is listed when it says that it is ready, and not any more from the moment at which
//! it is told to end.
//!
//! Runners are machines of their own in the cluster's network, all on one port. Who lists them is
//! an `EndpointSlice` of a headless Service without a selector, which the cluster's DNS serves as
//! well.

mod host;

use std::net::{IpAddr, SocketAddr};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::cluster::{Cluster, Discovery, ENTRYPOINT, Namespace};
use crate::load::{Load, Plan, Routers};
use crate::process::{Sandbox, Server, eventually, flag, is_healthy};

pub use host::Host;

const PORT: u16 = 9445;
const SERVICE: &str = "shards";
/// The cluster's DNS server.
const DNS: &str = "10.250.0.1:53";
/// The file of the images' entrypoints.
const METADATA: &str = "image-metadata.yaml";
/// The input of first calls.
const INPUT: &str = "kind: ResourceList\n";

/// Whether a runner takes part, in the `EndpointSlice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// It exists but is not ready: down, or starting.
    NotReady,
    Ready,
    Terminating,
}

#[derive(Debug)]
pub struct Runner {
    pub server: Server,
    pub host: Host,
    /// What was changed counts after [`Tier::publish`].
    pub listed: Listed,
}

/// Routers, runners, and the pods of some functions.
pub struct Tier {
    pub images: Vec<String>,
    pub routers: Vec<Server>,
    pub runners: Vec<Runner>,
    router_flags: Vec<String>,
    runner_flags: Vec<String>,
    listed: Routers,
    target: String,
    // Last, so that nothing works on them while they are taken away.
    namespace: Namespace,
    pub sandbox: Sandbox,
}

// === impl Tier ===

impl Tier {
    /// Starts two routers and some runners with these flags, and makes the first call of each of so
    /// many functions.
    pub async fn start(
        cluster: &Cluster,
        discovery: Discovery,
        runners: usize,
        functions: usize,
        runner_flags: &[&str],
    ) -> Self {
        let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
        let name = |number| format!("scaled/function-{number}:v1");
        let pushed = (0..functions).map(|number| async move { cluster.function_named(&name(number)).await });
        let images: Vec<String> = stream::iter(pushed).buffered(4).collect().await;
        let known: Vec<_> =
            images.iter().map(|image| json!({"image": image, "entrypoint": [ENTRYPOINT]})).collect();
        sandbox.write(METADATA, json!({ "images": known }).to_string());
        let service = json!({
            "metadata": {"name": SERVICE},
            "spec": {"clusterIP": "None", "ports": [{"name": "grpc", "port": PORT}]},
        });
        namespace.make::<Service>(service).await;
        let service = format!("{SERVICE}.{}.svc.cluster.local:{PORT}", namespace.name());
        let target = match discovery {
            Discovery::EndpointSlices => format!("kubernetes:///{}/{SERVICE}:{PORT}", namespace.name()),
            Discovery::Dns => format!("dns://{DNS}/{service}"),
        };
        let kubeconfig = (discovery == Discovery::EndpointSlices)
            .then(|| format!("--kubeconfig={}", cluster.kubeconfig().display()));
        let mut tier = Self {
            images,
            routers: Vec::new(),
            runners: Vec::new(),
            router_flags: kubeconfig.into_iter().chain(["--router-count=2".to_owned()]).collect(),
            runner_flags: runner_flags.iter().map(ToString::to_string).collect(),
            listed: Routers::new([]),
            target,
            namespace,
            sandbox,
        };
        let started = (0..runners).map(|_| tier.runner());
        tier.runners = join_all(started).await;
        tier.publish().await;
        for _ in 0..2 {
            tier.add_router().await;
        }
        tier.know_each_other().await;
        tier.warm_up().await;
        tier
    }

    /// Starts a load at all routers, those that come later included.
    pub fn load(&self, plan: Plan) -> Load {
        Load::through(&self.listed, plan)
    }

    pub fn client(&self, router: usize) -> Client {
        Client::new(self.routers[router].address())
    }

    /// Starts a runner and waits until it is ready. It is not yet among [`Tier::runners`].
    pub async fn runner(&self) -> Runner {
        let host = Host::start(&self.sandbox).await;
        let server = self.start_on(&host).await;
        Runner { server, host, listed: Listed::Ready }
    }

    /// Starts one that has ended again, on the same machine.
    pub async fn restart(&mut self, runner: usize) {
        self.runners[runner].server = self.start_on(&self.runners[runner].host).await;
    }

    async fn start_on(&self, host: &Host) -> Server {
        let cluster = self.namespace.cluster();
        let own = [
            flag("address", host.address().to_string()),
            flag("port", PORT.to_string()),
            flag("shard-address", host.address().to_string()),
            flag("peers", &self.target),
            "--pod-backend=kubernetes".into(),
            flag("kubeconfig", cluster.kubeconfig()),
            flag("pod-namespace", self.namespace.name()),
            flag("image-metadata", self.sandbox.path(METADATA)),
        ];
        let flags = own.into_iter().chain(self.runner_flags.iter().map(Into::into));
        let prepare = |command: &mut tokio::process::Command| {
            host.enter(&self.sandbox, command);
            command.env("WRAPPER_SERVER_IMAGE", cluster.wrapper_image());
        };
        let server = self.sandbox.server_with("porch-fn-runner", flags, prepare).await;
        server.until_ready().await;
        server
    }

    /// Starts runners, each of which takes part when all are ready.
    pub async fn add(&mut self, runners: usize) {
        let started = join_all((0..runners).map(|_| self.runner())).await;
        self.runners.extend(started);
        self.publish().await;
    }

    /// Ends some runners at once, in order, like a Deployment that is scaled down.
    pub async fn remove(&mut self, ending: std::ops::Range<usize>) {
        for runner in &mut self.runners[ending.clone()] {
            runner.listed = Listed::Terminating;
        }
        self.publish().await;
        for runner in &self.runners[ending.clone()] {
            runner.server.signal(Signal::TERM);
        }
        let ended = self.runners[ending.clone()].iter_mut().map(|runner| runner.server.ended());
        for status in join_all(ended).await {
            assert!(status.success(), "{status}");
        }
        self.runners.drain(ending);
        self.publish().await;
    }

    /// Starts a router, which takes part as soon as it is ready.
    pub async fn add_router(&mut self) {
        let own = [flag("runners", &self.target)];
        let flags = own.into_iter().chain(self.router_flags.iter().map(Into::into));
        let router = self.sandbox.server("porch-fn-router", flags).await;
        router.until_ready().await;
        self.routers.push(router);
        self.list_routers();
    }

    /// Ends the oldest router. Those who are connected stay until it hangs up.
    pub async fn remove_router(&mut self) {
        let mut router = self.routers.remove(0);
        self.list_routers();
        let status = router.terminate().await;
        assert!(status.success(), "{status}");
    }

    fn list_routers(&self) {
        self.listed.set(self.routers.iter().map(Server::address));
    }

    pub async fn publish(&self) {
        self.publish_some(|_| true).await;
    }

    /// Writes the `EndpointSlice` with some of the runners alone, chosen by their place.
    pub async fn publish_some(&self, listed: impl Fn(usize) -> bool) {
        let runners = self.runners.iter().enumerate().filter(|(place, _)| listed(*place));
        let endpoints: Vec<_> = runners.map(|(_, runner)| runner.endpoint()).collect();
        let wish = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "grpc", "port": PORT, "protocol": "TCP"}],
        });
        let slices = self.namespace.api::<EndpointSlice>();
        let params = PatchParams::apply("porch-fn-tests").force();
        slices.patch(SERVICE, &params, &Patch::Apply(wish)).await.expect("an EndpointSlice");
    }

    /// Waits until every router finds every runner healthy.
    pub async fn know_each_other(&self) {
        let mut expected: Vec<_> = self.runners.iter().map(Runner::name).collect();
        expected.sort();
        for router in &self.routers {
            eventually("the router knows all runners as well", async || {
                let page = router.json("/shards").await;
                let shards = page["shards"].as_array()?.iter();
                let mut well: Vec<_> = shards
                    .filter(|shard| is_healthy(shard))
                    .filter_map(|shard| shard["address"].as_str())
                    .collect();
                well.sort_unstable();
                (well == expected).then_some(())
            })
            .await;
        }
    }

    async fn warm_up(&self) {
        let client = self.client(0);
        let first_calls = self.images.iter().map(|image| client.call(image, INPUT));
        let answers: Vec<_> = stream::iter(first_calls).buffer_unordered(8).collect().await;
        assert!(answers.iter().all(|answer| answer.output() == INPUT));
    }

    /// Ends it all, and waits until the function pods are gone, so that they are out of the way of
    /// other tests.
    pub async fn finish(self) {
        let Self { routers, runners, namespace, sandbox, .. } = self;
        drop((routers, runners, sandbox));
        namespace.finish().await;
    }
}

// === impl Runner ===

impl Runner {
    pub fn name(&self) -> String {
        SocketAddr::new(IpAddr::V4(self.host.address()), PORT).to_string()
    }

    /// Its entry in the `EndpointSlice`.
    fn endpoint(&self) -> Value {
        let (ready, serving, terminating) = match self.listed {
            Listed::NotReady => (false, false, false),
            Listed::Ready => (true, true, false),
            Listed::Terminating => (false, true, true),
        };
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        json!({"addresses": [self.host.address()], "conditions": conditions})
    }
}
