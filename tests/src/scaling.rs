//! Routers and runners as processes on a real cluster, scaled up and down like a Deployment. Their
//! headless Service has no selector, so this code writes its `EndpointSlice`. The cluster's DNS
//! serves the same addresses. The slice lists a runner as ready once the runner reports that it is
//! ready, and as terminating before the runner gets SIGTERM.

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
/// The file with the entrypoints of the function images.
const METADATA: &str = "image-metadata.yaml";
const INPUT: &str = "kind: ResourceList\n";

/// A runner's conditions in the `EndpointSlice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// The runner is stopped or starting.
    NotReady,
    Ready,
    Terminating,
}

#[derive(Debug)]
pub struct Runner {
    pub server: Server,
    pub host: Host,
    /// [`Tier::publish`] writes this value into the `EndpointSlice`.
    pub listed: Listed,
}

/// Routers, runners, and the namespace of their pods.
pub struct Tier {
    pub images: Vec<String>,
    pub routers: Vec<Server>,
    pub runners: Vec<Runner>,
    router_flags: Vec<String>,
    runner_flags: Vec<String>,
    listed: Routers,
    target: String,
    // These are the last fields: they must be dropped after the processes that use them.
    namespace: Namespace,
    pub sandbox: Sandbox,
}

// === impl Tier ===

impl Tier {
    /// Starts two routers and `runners` runners. Calls each of the functions once, so that their
    /// pods exist.
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
        tier.wait_all_healthy().await;
        tier.client(0).call_all(&tier.images, INPUT).await;
        tier
    }

    /// Starts load on all routers. Routers that are added later get calls too.
    pub fn load(&self, plan: Plan) -> Load {
        Load::through(&self.listed, plan)
    }

    pub fn client(&self, router: usize) -> Client {
        Client::new(self.routers[router].address())
    }

    /// Starts a runner, waits until it is ready, and does not add it to [`Tier::runners`].
    pub async fn runner(&self) -> Runner {
        let host = Host::start(&self.sandbox).await;
        let server = self.start_on(&host).await;
        Runner { server, host, listed: Listed::Ready }
    }

    /// Restarts a runner that has ended, on the same host.
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
        server.wait_ready().await;
        server
    }

    /// Starts runners. Adds them to the `EndpointSlice` when all are ready.
    pub async fn add(&mut self, runners: usize) {
        let started = join_all((0..runners).map(|_| self.runner())).await;
        self.runners.extend(started);
        self.publish().await;
    }

    /// Terminates some runners at the same time, like a Deployment that is scaled down.
    pub async fn remove(&mut self, ending: std::ops::Range<usize>) {
        for runner in &mut self.runners[ending.clone()] {
            runner.listed = Listed::Terminating;
        }
        self.publish().await;
        for runner in &self.runners[ending.clone()] {
            runner.server.signal(Signal::TERM);
        }
        let ended = self.runners[ending.clone()].iter_mut().map(|runner| runner.server.wait_exit());
        for status in join_all(ended).await {
            assert!(status.success(), "{status}");
        }
        self.runners.drain(ending);
        self.publish().await;
    }

    /// Starts a router. When it is ready, callers may use it.
    pub async fn add_router(&mut self) {
        let own = [flag("runners", &self.target)];
        let flags = own.into_iter().chain(self.router_flags.iter().map(Into::into));
        let router = self.sandbox.server("porch-fn-router", flags).await;
        router.wait_ready().await;
        self.routers.push(router);
        self.list_routers();
    }

    /// Terminates the oldest router. Its callers stay connected until it closes their connections.
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

    /// Writes the `EndpointSlice` with only those runners whose index `listed` accepts.
    pub async fn publish_some(&self, listed: impl Fn(usize) -> bool) {
        let runners = self.runners.iter().enumerate().filter(|(index, _)| listed(*index));
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

    /// Waits until exactly these runners are healthy on the status page of each router.
    pub async fn wait_all_healthy(&self) {
        let mut expected: Vec<_> = self.runners.iter().map(Runner::name).collect();
        expected.sort();
        for router in &self.routers {
            eventually("all runners are healthy", async || {
                let page = router.json("/shards").await;
                let shards = page["shards"].as_array()?.iter();
                let mut healthy: Vec<_> = shards
                    .filter(|shard| is_healthy(shard))
                    .filter_map(|shard| shard["address"].as_str())
                    .collect();
                healthy.sort_unstable();
                (healthy == expected).then_some(())
            })
            .await;
        }
    }

    /// Ends all processes, and waits until the function pods are deleted, so that they do not
    /// affect other tests.
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

    /// The runner's entry in the `EndpointSlice`.
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
