//! Images from registries of all kinds, found by the runner and pulled by the node: no file says what they run.

mod constraints;
mod counts;
mod harness;
mod no_secrets;
mod outage;
pub(super) mod private;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::cluster::{Cluster, ENTRYPOINT, Namespace, Own};
use porch_fn_tests::process::{Sandbox, Server, figure, flag};
use porch_fn_tests::registry::{Access, Auth, Crane, Registry, RegistryProxy, node};
use tokio::process::Command;
use tokio::time::Instant;
use tonic::Code;

use super::calls::INPUT;

/// The function says its arguments in the log.
pub(super) const ARGUMENTS: &str = "kind: ResourceList\n# test-args: yes\n";
/// What a call is answered in that needs no pod, but questions to a registry that answers: without waiting for anything that
/// has a time limit. On a quiet node a hundredth of it.
pub(super) const AT_ONCE: Duration = Duration::from_secs(10);

/// A namespace for pods, and a place for runners and registries.
pub(super) struct Stand {
    pub(super) cluster: Cluster,
    pub(super) own: Own,
    pub(super) namespace: Namespace,
    pub(super) sandbox: Sandbox,
}

/// A registry, which the node finds.
pub(super) struct Place<'a> {
    pub(super) registry: Registry<'a>,
    pub(super) crane: Crane<'a>,
    function: String,
}

// === impl Stand ===

impl Stand {
    /// None where the cluster is not ours: its node would have to be told of registries.
    pub(super) async fn start() -> Option<Self> {
        let cluster = Cluster::connect().await;
        let own = cluster.own()?.clone();
        let namespace = cluster.namespace().await;
        Some(Self { cluster, own, namespace, sandbox: Sandbox::new() })
    }

    /// Where processes and the node reach each other.
    pub(super) fn ip(&self) -> IpAddr {
        self.cluster.registry().parse::<SocketAddr>().unwrap().ip()
    }

    pub(super) async fn registry(&self, name: &str, access: Access) -> Place<'_> {
        let authority = access.tls.clone();
        let registry = Registry::start(&self.sandbox, name, self.ip(), access).await;
        match authority {
            Some(authority) => node::trusting(&self.own, registry.address(), authority.path()),
            None => node::plain(&self.own, registry.address()),
        }
        let function = self.cluster.function_image();
        Place { crane: Crane::of(&registry), registry, function }
    }

    /// Before an open registry.
    pub(super) async fn proxy(&self, place: &Place<'_>, auth: Auth) -> RegistryProxy {
        RegistryProxy::start(self.ip(), place.registry.address(), auth).await
    }

    /// A runner that has to ask registries. It takes no credentials but those that flags name.
    pub(super) async fn runner(&self, more: &[String]) -> (Server, Client) {
        let flags = [
            "--pod-backend=kubernetes".into(),
            flag("kubeconfig", self.cluster.kubeconfig()),
            flag("pod-namespace", self.namespace.name()),
        ];
        let wrapper = self.cluster.wrapper_image();
        let home = self.sandbox.path("no-docker-config");
        let prepare = |command: &mut Command| {
            command.env("WRAPPER_SERVER_IMAGE", wrapper).env("DOCKER_CONFIG", home);
        };
        let flags = flags.into_iter().chain(more.iter().map(Into::into));
        let runner = self.sandbox.server_with("porch-fn-runner", flags, prepare).await;
        let client = Client::new(runner.address());
        (runner, client)
    }

    /// The image of the only pod's function.
    pub(super) async fn pod_image(&self) -> String {
        let pods = self.namespace.pods().await;
        assert_eq!(pods.len(), 1);
        function_of(&pods[0])
    }
}

/// The image that a pod's function runs.
pub(super) fn function_of(pod: &Pod) -> String {
    let containers = &pod.spec.as_ref().unwrap().containers;
    let function = containers.iter().find(|container| container.name == "function").unwrap();
    function.image.clone().unwrap()
}

// === impl Place ===

impl Place<'_> {
    /// `--insecure-registries` with it.
    pub(super) fn insecure(&self) -> String {
        insecure(self.registry.address())
    }

    /// Pushes the function with this word as its argument, and returns its reference.
    pub(super) async fn push(&self, name: &str, word: &str) -> String {
        let image = self.registry.image(name);
        self.crane.change(&self.function, &image, &[&format!("--cmd={word}")]).await;
        image
    }
}

pub(super) fn insecure(address: SocketAddr) -> String {
    format!("--insecure-registries={address}")
}

/// What is said of an image whose registry has no answer.
pub(super) fn failed(image: &str, reason: &str) -> String {
    format!(
        "unable to get the grpc client to the pod for {image}: the function's pod failed to start: {reason}"
    )
}

/// A call, and how long it took.
pub(super) async fn timed(client: &Client, image: &str) -> (Answer, Duration) {
    let start = Instant::now();
    let answer = client.call(image, INPUT).await;
    (answer, start.elapsed())
}

/// The call fails with this reason, and at once.
pub(super) async fn fails_at_once(client: &Client, image: &str, what: &str, reason: &str) {
    let (answer, took) = timed(client, image).await;
    figure(&format!("{what}: told after {took:.1?}"));
    answer.fails(Code::Unknown, &failed(image, reason));
    assert!(took < AT_ONCE, "{took:?}");
}

/// The call succeeds, and the function was started with these arguments.
pub(super) async fn runs_with(client: &Client, image: &str, arguments: &str) {
    let answer = client.call(image, ARGUMENTS).await;
    assert_eq!(answer.output(), ARGUMENTS);
    assert_eq!(answer.log(), format!("{ENTRYPOINT} {arguments}\n"));
}

/// A file in the place of a mounted Secret's.
pub(super) fn path_flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_open_registry_says_what_an_image_runs_and_its_digest() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let image = place.push("some/joined:v1", "--first,second").await;
    let (_runner, client) = stand.runner(&[place.insecure()]).await;
    let start = Instant::now();
    runs_with(&client, &image, "--first second").await;
    figure(&format!("first call of an image that a registry knows: {:.1?}", start.elapsed()));
    assert_eq!(stand.pod_image().await, format!("{image}@{}", place.crane.digest(&image).await));

    let absent = place.registry.image("some/joined:v2");
    let reason = "the image was not found in its registry: check its name and tag";
    fails_at_once(&client, &absent, "a tag that is not there", reason).await;
    let absent = place.registry.image("some/other:v1");
    fails_at_once(&client, &absent, "a repository that is not there", reason).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_registry_that_speaks_plain_http_must_be_named() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let image = place.push("function:v1", "word").await;
    let (_runner, client) = stand.runner(&[]).await;
    let (answer, took) = timed(&client, &image).await;
    figure(&format!("plain HTTP where TLS is wanted: told after {took:.1?}"));
    assert_eq!(answer.code, Code::Unknown);
    assert!(answer.message.contains("--insecure-registries"), "{}", answer.message);
    assert!(took < AT_ONCE, "{took:?}");
    assert!(stand.namespace.pods().await.is_empty());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_index_is_run_by_its_own_digest_for_the_platform_asked_for() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let own = if cfg!(target_arch = "x86_64") { "linux/amd64" } else { "linux/arm64" };
    let mut parts = Vec::new();
    for platform in [own, "linux/s390x", "linux/riscv64"] {
        let part = place.registry.image(&format!("parts:{}", platform.replace('/', "-")));
        let flags = ["--set-platform", platform, &format!("--cmd={platform}")];
        place.crane.change(&place.function, &part, &flags).await;
        parts.push(part);
    }
    let (whole, foreign) = (place.registry.image("parts:v1"), place.registry.image("parts:foreign"));
    place.crane.index(&whole, &[&parts[1], &parts[0]]).await;
    place.crane.index(&foreign, &[&parts[1], &parts[2]]).await;
    let (runner, client) = stand.runner(&[place.insecure()]).await;
    runs_with(&client, &whole, own).await;
    assert_eq!(stand.pod_image().await, format!("{whole}@{}", place.crane.digest(&whole).await));
    let reason =
        format!("the image is not there for {own}: build it for that, or choose another with --platform");
    fails_at_once(&client, &foreign, "an index without our platform", &reason).await;
    drop(runner);

    // The node takes its own part of the index; the command is that of the platform asked for.
    let place = stand.registry("another", Access::default()).await;
    for (from, to) in [(&parts[0], "own"), (&parts[1], "foreign")] {
        place.crane.copy(from, &place.registry.image(&format!("parts:{to}"))).await;
    }
    let image = place.registry.image("parts:v1");
    place
        .crane
        .index(&image, &[&place.registry.image("parts:own"), &place.registry.image("parts:foreign")])
        .await;
    let (_runner, client) = stand.runner(&[place.insecure(), "--platform=linux/s390x".to_owned()]).await;
    runs_with(&client, &image, "linux/s390x").await;
}
