//! Images from registries of all kinds. The runner reads the image's metadata from its registry,
//! and the node pulls the image; no file lists the image's command. The runner's requests to
//! registries are tested in runner/registry.

mod outage;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::ENTRYPOINT;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Server, figure, flag};
use porch_fn_tests::registry::{Access, Authority, Registry, User, docker_config};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::rig::{Bench, COPY, INPUT, failed, function};

/// The function logs its arguments.
const ARGUMENTS: &str = "kind: ResourceList\n# test-args: yes\n";
/// How soon pods follow a moved tag. An owner waits a minute before it replaces pods, in case it
/// does not stay the owner.
const FOLLOWED_WITHIN: Duration = Duration::from_mins(3);
/// The limit for a call that needs no pod. On a quiet node the call takes a hundredth of it.
const AT_ONCE: Duration = Duration::from_secs(10);
const UNTRUSTED: &str = "the certificate of the image's registry is not trusted: add its CA with \
                         --enable-private-registries-tls and --tls-secret-path, or name the registry in \
                         --insecure-registries if it speaks plain HTTP";

/// A registry that the node can find, and the function image to push there.
struct Place<'a> {
    registry: Registry<'a>,
    function: String,
}

// === impl Bench ===

impl Bench {
    async fn registry(&self, name: &str, access: Access) -> Place<'_> {
        let ip: IpAddr = self.cluster.registry().parse::<SocketAddr>().unwrap().ip();
        let registry = Registry::start(&self.sandbox, name, ip, access).await;
        registry.register_with(self.cluster.own());
        Place { registry, function: self.cluster.function_image() }
    }

    /// Starts a runner that has to ask registries. It uses only credentials that flags name.
    async fn asking_runner(&self, more: &[String]) -> (Server, Client) {
        let flags = [
            "--pod-backend=kubernetes".into(),
            flag("kubeconfig", self.cluster.kubeconfig()),
            flag("pod-namespace", self.namespace.name()),
        ];
        let (wrapper, home) = (self.cluster.wrapper_image(), self.sandbox.path("no-docker-config"));
        let prepare = |command: &mut Command| {
            command.env("WRAPPER_SERVER_IMAGE", wrapper).env("DOCKER_CONFIG", home);
        };
        let flags = flags.into_iter().chain(more.iter().map(Into::into));
        let runner = self.sandbox.server_with("porch-fn-runner", flags, prepare).await;
        let client = Client::new(runner.address());
        (runner, client)
    }
}

// === impl Place ===

impl Place<'_> {
    fn insecure(&self) -> String {
        format!("--insecure-registries={}", self.registry.address())
    }

    /// A file's content with a user's credentials.
    fn config(&self, user: &User) -> String {
        docker_config([(self.registry.address().to_string().as_str(), user)])
    }

    /// Pushes the function with this word as its argument, and returns its reference.
    async fn push(&self, name: &str, word: &str) -> String {
        let image = self.registry.image(name);
        self.registry.change(&self.function, &image, &[&format!("--cmd={word}")]).await;
        image
    }
}

fn user(password: &str) -> User {
    User::new("runner", password)
}

/// Asserts that the call succeeds, and that the function was started with these arguments.
async fn runs_with(client: &Client, image: &str, arguments: &str) {
    let answer = client.call(image, ARGUMENTS).await;
    assert_eq!(answer.output(), ARGUMENTS);
    assert_eq!(answer.log(), format!("{ENTRYPOINT} {arguments}\n"));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_private_registrys_images_run_with_a_copy_of_the_credentials_that_follows_the_file() {
    let bench = Bench::new().await;
    let access = Access { user: Some(user("a planted password")), tls: None };
    let place = bench.registry("private", access).await;
    let config = place.config(&user("a planted password"));
    let flags = [&bench.credentials(&config)[..], &[place.insecure()]].concat();
    let (first, second) = (place.push("team/a:v1", "--one,two").await, place.push("team/b:v1", "two").await);
    let (runner, client) = bench.asking_runner(&flags).await;
    runs_with(&client, &first, "--one two").await;
    let secret = bench.copied(&config).await;
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/dockerconfigjson"));
    let pod = bench.pod().await;
    assert_eq!(function(&pod).image, Some(format!("{first}@{}", place.registry.digest(&first).await)));
    let named = pod.spec.as_ref().unwrap().image_pull_secrets.iter().flatten();
    assert_eq!(named.map(|secret| secret.name.as_str()).collect::<Vec<_>>(), [COPY]);

    // If the content is the same, nothing is written: neither by another runner, nor after the file
    // was rewritten.
    bench.credentials(&config);
    let (other, another) = bench.asking_runner(&flags).await;
    runs_with(&another, &second, "two").await;
    assert_eq!(bench.copied(&config).await.resource_version(), secret.resource_version());
    drop((other, runner));

    let (_runner, _client) = bench.asking_runner(&flags).await;
    let new = place.config(&user("another planted password"));
    bench.credentials(&new);
    assert_eq!(bench.copied(&new).await.uid(), secret.uid(), "it was changed in place");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_private_authority_is_trusted_when_it_is_given() {
    let bench = Bench::new().await;
    let authority = Authority::create(&bench.sandbox, "ours").await;
    let place = bench.registry("secure", Access { user: None, tls: Some(authority.clone()) }).await;
    let image = place.push("team/a:v1", "word").await;
    let (runner, client) = bench.asking_runner(&[]).await;
    let start = Instant::now();
    client.call(&image, INPUT).await.assert_failed(Code::Unknown, &failed(&image, UNTRUSTED));
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    drop(runner);

    bench.sandbox.write("trusted/ca.crt", std::fs::read(authority.path()).unwrap());
    let path = format!("--tls-secret-path={}", bench.sandbox.path("trusted").display());
    let (_runner, client) = bench.asking_runner(&["--enable-private-registries-tls".to_owned(), path]).await;
    runs_with(&client, &image, "word").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_moved_tag_is_followed_without_a_failed_call() {
    let bench = Bench::new().await;
    let place = bench.registry("open", Access::default()).await;
    let image = place.push("moving:v1", "before").await;
    let flags = [place.insecure(), "--image-metadata-ttl=2s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = bench.asking_runner(&flags).await;
    runs_with(&client, &image, "before").await;
    let before = place.registry.digest(&image).await;

    let load = Load::start(runner.address(), 2, std::slice::from_ref(&image));
    place.push("moving:v1", "after").await;
    let moved = Instant::now();
    let after = place.registry.digest(&image).await;
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
        runs_with(&client, &image, "after").await;
    }
    bench.pod_of(&format!("{image}@{after}")).await;
    load.stop().await.assert_all_succeeded();
    assert_eq!(client.call(&format!("{image}@{before}"), INPUT).await.output(), INPUT);
}
