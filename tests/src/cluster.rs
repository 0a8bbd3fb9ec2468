//! A real Kubernetes for tests: `tests/cluster/run` starts one and runs the tests in its network.

mod audit;
mod installation;
mod kubelet;
mod namespace;
mod own;
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
pub use installation::{Discovery, Installation, Plan, ROUTER, RUNNERS, SETTLES};
pub use namespace::{Account, Namespace};
pub use own::Own;
pub use proxy::{ApiProxy, Asked, Fault, Rule};
pub use watch::{Change, Recorder, until};

use crate::process::{PATIENCE, Sandbox};

/// What `tests/cluster/cluster images` pushes.
const WRAPPER: &str = "wrapper-server:test";
const FUNCTION: &str = "function:test";
/// What `tests/cluster/pack` pushes.
const PROGRAMS: &str = "porch-fn:test";
/// The entry point of the function's image.
pub const ENTRYPOINT: &str = "/function";

/// A cluster of the tests' own.
#[derive(Clone)]
pub struct Cluster {
    config: Config,
    client: Client,
    registry: String,
    own: Own,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster in whose network this process is.
    /// Panics when there is none, since a test that cannot run must not pass.
    pub async fn connect() -> Self {
        let own = Own::of_environment();
        let config = config(&own.kubeconfig()).await;
        let client = Client::try_from(config.clone()).expect("a client of the cluster");
        let answer = tokio::time::timeout(Duration::from_secs(20), client.apiserver_version()).await;
        answer.expect("the cluster answers in 20 s").expect("the cluster answers");
        Self { config, client, registry: variable("REGISTRY"), own }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kubeconfig that has all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.own.kubeconfig()
    }

    /// The cluster's registry, `HOST:PORT`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The cluster's processes and files.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// The API server's record of all requests.
    pub fn audit(&self) -> Audit {
        Audit::new(self.own.directory().join("log/audit.log"), self.client())
    }

    /// The wrapper-server's image. It has the program in `/wrapper-server` and
    /// `/home/nonroot/wrapper-server`, and `/bin/cp`.
    pub fn wrapper_image(&self) -> String {
        format!("{}/{WRAPPER}", self.registry)
    }

    /// A function's image, which answers with its input. tests/cluster/images/function.c lists what
    /// an input can ask for.
    pub fn function_image(&self) -> String {
        format!("{}/{FUNCTION}", self.registry)
    }

    /// The image of router and runner, `/porch-fn-router` and `/porch-fn-runner`.
    pub fn programs_image(&self) -> String {
        format!("{}/{PROGRAMS}", self.registry)
    }

    /// The function's image under another name, such as `set-image:v2`, which makes it another
    /// function. Without a node nothing is pulled, and the name is enough.
    pub async fn function_named(&self, name: &str) -> String {
        let image = format!("{}/{name}", self.registry);
        if self.own.has_node() {
            let mut crane = Command::new("crane");
            crane.args(["copy", "--insecure", &self.function_image(), &image]).kill_on_drop(true);
            let ended = crane.output().await.expect("crane is on PATH in the cluster's network");
            assert!(ended.status.success(), "{image}: {}", String::from_utf8_lossy(&ended.stderr));
        }
        image
    }

    /// Runs kubectl to its end, however that is. What it waits for takes minutes on a busy machine.
    pub async fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let kubeconfig = self.kubeconfig();
        let own = [OsStr::new("--kubeconfig"), kubeconfig.as_os_str()];
        let args = own.into_iter().chain(args.iter().map(OsStr::new));
        Sandbox::new().run_within(6 * PATIENCE, "kubectl", args, input.as_bytes()).await
    }

    /// The same for a command that must succeed.
    pub async fn kubectl_succeeds(&self, args: &[&str], input: &str) -> Output {
        let ended = self.kubectl(args, input).await;
        assert!(ended.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        ended
    }

    /// A namespace of the test's own, with a random name.
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
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: tests/cluster/run runs these tests"))
}
