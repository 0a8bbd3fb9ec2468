//! Images from private, secure and open registries. The runner reads an image's metadata from its
//! registry, and the node pulls the image. common/registry tests the runner's requests to
//! registries.

mod outage;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::ENTRYPOINT;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Server, figure};
use porch_fn_tests::registry::{Access, Authority, Registry, User, docker_config};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::rig::{COPY, INPUT, Setup, failed, function};

/// The function logs its arguments.
const ARGUMENTS: &str = "kind: ResourceList\n# test-args: yes\n";
/// The maximum time from the move of a tag until the new image answers. An owner waits a minute
/// before it replaces pods, because another runner may become the owner.
const FOLLOWED_WITHIN: Duration = Duration::from_mins(3);
/// The maximum time of a call that fails without a pod. On an idle node, such a call takes a
/// hundredth of this time.
const AT_ONCE: Duration = Duration::from_secs(10);
const UNTRUSTED: &str = "the certificate of the image's registry is not trusted: add its CA with \
                         --enable-private-registries-tls and --tls-secret-path";

/// A registry that the node can reach, and the function image that is pushed to it.
struct TestRegistry<'a> {
    server: Registry<'a>,
    function: String,
}

// === impl Setup ===

impl Setup {
    async fn registry(&self, name: &str, access: Access) -> TestRegistry<'_> {
        let ip: IpAddr = self.cluster.registry().parse::<SocketAddr>().unwrap().ip();
        let registry = Registry::start(&self.sandbox, name, ip, access).await;
        registry.register_with(self.cluster.machine());
        TestRegistry { server: registry, function: self.cluster.function_image() }
    }

    /// Starts a runner that must ask registries for image metadata.
    async fn runner_without_metadata(&self, more: &[String]) -> (Server, Client) {
        let (kubeconfig, more) = (self.cluster.kubeconfig(), more.iter().map(Into::into));
        let runner = self.namespace.runner_with_flags(&self.sandbox, kubeconfig, more).await;
        let client = Client::new(runner.address());
        (runner, client)
    }
}

// === impl TestRegistry ===

impl TestRegistry<'_> {
    fn insecure(&self) -> String {
        format!("--insecure-registries={}", self.server.address())
    }

    /// The content of a file with a user's credentials.
    fn config(&self, user: &User) -> String {
        docker_config([(self.server.address().to_string().as_str(), user)])
    }

    /// Pushes the function with this word as its argument, and returns its reference.
    async fn push(&self, name: &str, word: &str) -> String {
        let image = self.server.image(name);
        self.server.change(&self.function, &image, &[&format!("--cmd={word}")]).await;
        image
    }
}

fn user(password: &str) -> User {
    User::new("runner", password)
}

/// Asserts that the call succeeds, and that the function was started with these arguments.
async fn assert_runs_with(client: &Client, image: &str, arguments: &str) {
    let answer = client.call(image, ARGUMENTS).await;
    assert_eq!(answer.output(), ARGUMENTS);
    assert_eq!(answer.log(), format!("{ENTRYPOINT} {arguments}\n"));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn images_of_a_private_registry_run_and_the_copied_credentials_follow_the_file() {
    let setup = Setup::new().await;
    let access = Access { user: Some(user("a planted password")), tls: None };
    let registry = setup.registry("private", access).await;
    let config = registry.config(&user("a planted password"));
    let flags = [&setup.credentials(&config)[..], &[registry.insecure()]].concat();
    let (first, second) =
        (registry.push("team/a:v1", "--one,two").await, registry.push("team/b:v1", "two").await);
    let (runner, client) = setup.runner_without_metadata(&flags).await;
    assert_runs_with(&client, &first, "--one two").await;
    let secret = setup.wait_copied(&config).await;
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/dockerconfigjson"));
    let pod = setup.pod().await;
    assert_eq!(function(&pod).image, Some(format!("{first}@{}", registry.server.digest(&first).await)));
    let named = pod.spec.as_ref().unwrap().image_pull_secrets.iter().flatten();
    assert_eq!(named.map(|secret| secret.name.as_str()).collect::<Vec<_>>(), [COPY]);

    // If the file is rewritten with the same content, no runner writes the Secret.
    setup.credentials(&config);
    let (other, another) = setup.runner_without_metadata(&flags).await;
    assert_runs_with(&another, &second, "two").await;
    assert_eq!(setup.wait_copied(&config).await.resource_version(), secret.resource_version());
    drop((other, runner));

    let (_runner, _client) = setup.runner_without_metadata(&flags).await;
    let new = registry.config(&user("another planted password"));
    setup.credentials(&new);
    assert_eq!(setup.wait_copied(&new).await.uid(), secret.uid(), "the Secret was not replaced");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_private_ca_is_trusted_if_a_flag_names_it() {
    let setup = Setup::new().await;
    let authority = Authority::create(&setup.sandbox, "ours").await;
    let registry = setup.registry("secure", Access { user: None, tls: Some(authority.clone()) }).await;
    let image = registry.push("team/a:v1", "word").await;
    let (runner, client) = setup.runner_without_metadata(&[]).await;
    let start = Instant::now();
    client.call(&image, INPUT).await.assert_failed(Code::Unknown, &failed(&image, UNTRUSTED));
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    drop(runner);

    setup.sandbox.write("trusted/ca.crt", std::fs::read(authority.path()).unwrap());
    let path = format!("--tls-secret-path={}", setup.sandbox.path("trusted").display());
    let (_runner, client) =
        setup.runner_without_metadata(&["--enable-private-registries-tls".to_owned(), path]).await;
    assert_runs_with(&client, &image, "word").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_moved_tag_is_followed_without_a_failed_call() {
    let setup = Setup::new().await;
    let registry = setup.registry("open", Access::default()).await;
    let image = registry.push("moving:v1", "before").await;
    let flags = [registry.insecure(), "--image-metadata-ttl=2s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = setup.runner_without_metadata(&flags).await;
    assert_runs_with(&client, &image, "before").await;
    let before = registry.server.digest(&image).await;

    let load = Load::start(runner.address(), 2, std::slice::from_ref(&image));
    registry.push("moving:v1", "after").await;
    let moved = Instant::now();
    let after = registry.server.digest(&image).await;
    loop {
        let answer = client.call(&image, ARGUMENTS).await;
        assert_eq!(answer.output(), ARGUMENTS);
        if answer.log() == format!("{ENTRYPOINT} after\n") {
            break;
        }
        assert!(moved.elapsed() < FOLLOWED_WITHIN, "the old image still answers: {}", answer.log());
        sleep(Duration::from_millis(50)).await;
    }
    figure(&format!("a moved tag: the new image answers after {:.1?}", moved.elapsed()));
    // The old pod still exists, but gets no more calls.
    for _ in 0..10 {
        assert_runs_with(&client, &image, "after").await;
    }
    setup.pod_of(&format!("{image}@{after}")).await;
    load.stop().await.assert_all_succeeded();
    assert_eq!(client.call(&format!("{image}@{before}"), INPUT).await.output(), INPUT);
}
