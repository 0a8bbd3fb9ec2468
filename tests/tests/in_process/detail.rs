//! One image in detail, through a router and a runner: its pods, its last error, its configuration,
//! and why its pods do not start.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_status_page::{ImageDetail, ImageStatus, Status};
use porch_fn_tests::client::Client;
use porch_fn_tests::fleet::{PREFIX, start_router};
use porch_fn_tests::process::{Sandbox, eventually, flag, get, get_json, wait_runners_healthy};
use porch_fn_tests::stack::start_runner;
use serde_json::Value;
use tonic::Code;

const INPUT: &str = "kind: ResourceList\n";
const FAILS: &str = "cat >/dev/null; printf 'first line\\nsecond line\\n' >&2; exit 1";

/// A router and a runner with one function, `f:v1`. Its local pods are processes that print the
/// address of a wrapper-server in this process. While the file `broken` exists, they end at once.
struct Setup {
    sandbox: Sandbox,
    _wrapper: wrapper_server::App,
    runner: runner::App,
    router: router::App,
}

impl Setup {
    /// `script` is the function.
    async fn start(script: &str, is_broken: bool, warm_up: bool) -> Self {
        let sandbox = Sandbox::new();
        let wrapper = ["wrapper-server", "--address=127.0.0.1", "--port=0", "--", "sh", "-c", script];
        let wrapper = porch_fn_flags::parse(wrapper.map(Into::into)).unwrap();
        let wrapper = wrapper_server::start(&wrapper).await.unwrap();
        let pod =
            format!("[ ! -e $TMPDIR/broken ] || exit 3\necho listening on {}\nread line", wrapper.address());
        if is_broken {
            sandbox.write("broken", "");
        }
        let pod = sandbox.script("pod", &pod);
        let mut flags = sandbox.local_programs(&pod, [("f:v1", PathBuf::from("true"))]);
        let warmed_up = if warm_up { "- {name: f:v1}" } else { "[]" };
        flags.push(flag("pod-cache-config", sandbox.write("cache.yaml", warmed_up)));
        let runner = start_runner(flags, None).await;
        let router = start_router([runner.address()], &[]).await;
        wait_runners_healthy(router.admin_address()).await;
        Self { sandbox, _wrapper: wrapper, runner, router }
    }

    fn admin(&self) -> SocketAddr {
        self.router.admin_address()
    }

    fn client(&self) -> Client {
        Client::new(self.router.address())
    }

    async fn detail(&self, image: &str) -> ImageDetail {
        serde_json::from_value(get_json(self.admin(), &format!("/image.json?image={image}")).await).unwrap()
    }

    /// The only image of the status page, if there is one.
    async fn image(&self) -> Option<ImageStatus> {
        let status: Status = serde_json::from_value(get_json(self.admin(), "/status.json").await).unwrap();
        status.images.into_iter().next()
    }

    /// Waits until the status page has a start error, and returns its text.
    async fn wait_start_error(&self) -> String {
        eventually("a start error", async || Some(self.image().await?.start_error?.text)).await
    }

    /// Waits until the status page has a ready pod and no start error.
    async fn wait_fixed(&self) {
        eventually("the start error is gone", async || {
            let image = self.image().await?;
            (image.start_error.is_none() && image.ready == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_image_has_pods_last_error_and_the_owners_configuration() {
    let setup = Setup::start(FAILS, false, false).await;
    let full = format!("{PREFIX}/f:v1");
    let before = setup.detail("f:v1").await;
    assert_eq!((&before.image, before.pods.len(), before.last_error), (&full, 0, None));
    let answer = setup.client().call("f:v1", INPUT).await;
    assert_eq!(answer.code, Code::Internal);
    for image in ["f:v1", &full] {
        let detail = setup.detail(image).await;
        assert_eq!((&detail.image, &detail.owner), (&full, &setup.runner.address().to_string()));
        assert!(!detail.owner_name.is_empty());
        let [pod] = &detail.pods[..] else { panic!("{:?}", detail.pods) };
        assert_eq!((&*pod.state, pod.calls, pod.age_ms < 600_000), ("ready", 0, true), "{pod:?}");
        let error = detail.last_error.unwrap();
        assert_eq!((&*error.code, &error.text), ("INTERNAL", &answer.message), "the whole message");
        assert!(error.text.contains("second line"), "{}", error.text);
        let own = get_json(setup.runner.admin_address(), &format!("/config?image={image}")).await;
        assert_eq!(detail.config, Some(own));
        assert_eq!(detail.error, None);
    }
    let status: Status = serde_json::from_value(get_json(setup.admin(), "/status.json").await).unwrap();
    let shard = &status.shards[0];
    assert!(!shard.name.is_empty() && shard.started_ms > 0 && shard.started_ms <= status.at_ms, "{shard:?}");
}

#[tokio::test]
async fn the_routers_configuration_page_is_the_owners() {
    let setup = Setup::start("cat", false, false).await;
    for query in ["?image=f:v1", "?image=example.com/other:v2", "?image=A%20B", "?image=", ""] {
        let path = format!("/config{query}");
        let own = get(setup.runner.admin_address(), &path).await;
        assert_eq!(get(setup.admin(), &path).await, own, "{query}");
        assert_eq!(own.0, if query.contains(":v") { 200 } else { 400 });
    }
    let (code, page) = get(setup.admin(), "/image.json?image=A%20B").await;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert!(code == 400 && page["error"].as_str().unwrap().contains("A B"), "{code} {page}");
}

#[tokio::test]
async fn a_called_image_that_cannot_start_shows_why_until_a_pod_is_ready() {
    let setup = Setup::start("cat", true, false).await;
    let answer = setup.client().call("f:v1", INPUT).await;
    assert_eq!(answer.code, Code::Unknown);
    let text = setup.wait_start_error().await;
    assert!(text.contains("its process ended (exit status 3)"), "{text}");
    // Callers get the same reason, but no name of a pod.
    let name = text.strip_prefix("pod ").unwrap().split(':').next().unwrap();
    assert!(answer.message.contains("exit status 3") && !answer.message.contains(name), "{answer:?}");
    let error = setup.detail("f:v1").await.last_error.unwrap();
    assert_eq!((&*error.code, error.text), ("UNKNOWN", answer.message));

    fs::remove_file(setup.sandbox.path("broken")).unwrap();
    eventually("a call succeeds", async || {
        (setup.client().call("f:v1", INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
    setup.wait_fixed().await;
}

#[tokio::test]
async fn an_image_that_nobody_called_shows_why_its_warm_up_fails() {
    let setup = Setup::start("cat", true, true).await;
    let text = setup.wait_start_error().await;
    assert!(text.contains("exit status 3"), "{text}");
    let detail = setup.detail("f:v1").await;
    assert_eq!(detail.last_error, None, "no call failed");
    fs::remove_file(setup.sandbox.path("broken")).unwrap();
    setup.wait_fixed().await;
}
