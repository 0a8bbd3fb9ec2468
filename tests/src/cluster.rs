//! A real Kubernetes cluster for tests. `tests/cluster/run` starts it, and runs the tests in its
//! network.

mod audit;
mod installation;
mod kubelet;
mod machine;
mod namespace;
mod proxy;
mod watch;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::process::Command;

pub use audit::{Audit, Mark, Request};
pub use installation::{Discovery, Installation, Plan, ROUTER, RUNNERS, SETTLE_TIME, alive};
pub use machine::Machine;
pub use namespace::{Account, Namespace};
pub use proxy::{ApiProxy, Fault, RequestKind, Rule, status};
pub use watch::{Change, Recorder, wait_until};

use crate::process::{PATIENCE, Sandbox};

/// The entry point of [`Cluster::function_image`].
pub const ENTRYPOINT: &str = "/function";

/// The test cluster. This process runs in its network.
#[derive(Clone)]
pub struct Cluster {
    config: Config,
    client: Client,
    registry: String,
    machine: Machine,
}

// === impl Cluster ===

impl Cluster {
    /// Connects to the cluster. Panics if there is none: a test that cannot run must not pass.
    pub async fn connect() -> Self {
        let machine = Machine::of_environment();
        let config = config(&machine.kubeconfig()).await;
        let client = Client::try_from(config.clone()).expect("a client of the cluster");
        let answer = tokio::time::timeout(Duration::from_secs(20), client.apiserver_version()).await;
        answer.expect("the cluster answers in 20 s").expect("the cluster answers");
        Self { config, client, registry: variable("REGISTRY"), machine }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The path of a kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.machine.kubeconfig()
    }

    /// The cluster's registry, `HOST:PORT`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn audit(&self) -> Audit {
        Audit::new(self.machine.directory().join("log/audit.log"), self.client())
    }

    /// The wrapper-server's image. The program is in the folders `/wrapper-server` and
    /// `/home/nonroot/wrapper-server`. The image also contains `/bin/cp`.
    pub fn wrapper_image(&self) -> String {
        format!("{}/wrapper-server:test", self.registry)
    }

    /// The image of a function that returns its input. tests/cluster/images/function.c lists the
    /// instructions that the input can contain.
    pub fn function_image(&self) -> String {
        format!("{}/function:test", self.registry)
    }

    /// The image with `/porch-fn-router` and `/porch-fn-runner`, which `tests/cluster/pack` pushes.
    pub fn programs_image(&self) -> String {
        format!("{}/porch-fn:test", self.registry)
    }

    /// Copies the function's image to another name, such as `set-image:v2`, and returns that image.
    /// A cluster without a node pulls no images, so nothing is copied there.
    pub async fn function_named(&self, name: &str) -> String {
        let image = format!("{}/{name}", self.registry);
        if self.machine.has_node() {
            let mut crane = Command::new("crane");
            crane.args(["copy", "--insecure", &self.function_image(), &image]).kill_on_drop(true);
            let ended = crane.output().await.expect("crane is on PATH in the cluster's network");
            assert!(ended.status.success(), "{image}: {}", String::from_utf8_lossy(&ended.stderr));
        }
        image
    }

    /// Runs kubectl and returns its output and exit status. A busy machine may need minutes.
    pub async fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let kubeconfig = self.kubeconfig();
        let own = [OsStr::new("--kubeconfig"), kubeconfig.as_os_str()];
        let args = own.into_iter().chain(args.iter().map(OsStr::new));
        Sandbox::new().run_within(6 * PATIENCE, "kubectl", args, input.as_bytes()).await
    }

    /// Runs kubectl, and asserts that it succeeds.
    pub async fn kubectl_ok(&self, args: &[&str], input: &str) -> Output {
        let ended = self.kubectl(args, input).await;
        assert!(ended.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        ended
    }

    /// Creates a namespace with a random name.
    pub async fn namespace(&self) -> Namespace {
        Namespace::create(self.clone()).await
    }
}

async fn config(kubeconfig: &Path) -> Config {
    let read = Kubeconfig::read_from(kubeconfig);
    let read = read.unwrap_or_else(|error| panic!("{}: {error}", kubeconfig.display()));
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    config.unwrap_or_else(|error| panic!("{}: {error}", kubeconfig.display()))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use tests/cluster/run"))
}
