//! What becomes of FunctionConfigs without one of the rights that the manifests grant:
//!
//! | right | without it |
//! |---|---|
//! | functionconfigs list | there are none, the log says it; functions run as the flags and files say |
//! | functionconfigs watch | they are listed every scan interval, the log says it |
//! | functionconfigs patch | the finalizer of the original stays, the log says it |
//! | functionconfigs/status patch | they are in effect, but do not say so; the log does |
//!
//! Of what the original's Role allows besides, nothing is used: functionconfigs get, functionconfigs/status get, update.

use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::Account;
use porch_fn_tests::process::{Server, eventually};
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};
use serde_json::{Value, json};

use super::{FINALIZER, Stand, error, observed, pods_of};
use crate::parity::INPUT;

/// A right that is taken away: verb and resource.
type Missing<'a> = &'a [(&'a str, &'a str)];

struct Limited<'a> {
    stand: &'a Stand,
    account: Account<'a>,
    image: String,
    runner: Server,
}

impl<'a> Limited<'a> {
    async fn without(stand: &'a Stand, missing: Missing<'_>) -> Self {
        let roles = Roles::of(&[BASE]).without(missing);
        let account = stand.namespace.account("runner").await;
        account.allow(&stand.namespace, &roles.rules(FUNCTIONS)).await;
        let kubeconfig = account.kubeconfig(&stand.sandbox).await;
        let image = stand.namespace.cluster().function_image();
        let flags = ["--scan-interval=1s"];
        let runner = stand.namespace.runner_as(&stand.sandbox, kubeconfig, &[&image], &flags).await;
        Self { stand, account, image, runner }
    }

    /// Gives it all rights.
    async fn allow(&self) {
        self.account.allow(&self.stand.namespace, &Roles::of(&[BASE]).rules(FUNCTIONS)).await;
    }

    async fn apply(&self, name: &str, spec: Value) {
        self.stand.configs.apply(name, json!({}), spec).await;
    }

    async fn applied(&self, name: &str) {
        self.stand.configs.applied(name).await;
    }

    /// Makes the object as the original's runner leaves it, and deletes it.
    async fn delete_with_finalizer(&self, name: &str) {
        self.stand.configs.patch(name, json!({"metadata": {"finalizers": [FINALIZER]}})).await;
        self.stand.configs.delete(name).await;
    }

    async fn says(&self, text: &str) {
        eventually(&format!("the log says {text:?}"), async || {
            self.runner.log().contains(text).then_some(())
        })
        .await;
    }

    /// Asserts that the log has one line with this text.
    fn said_once(&self, text: &str) {
        let log = self.runner.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(text)).collect();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(" WARN "), "{}", lines[0]);
    }

    async fn serves(&self) {
        assert_eq!(Client::new(self.runner.address()).call(&self.image, INPUT).await.output(), INPUT);
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_any_right_functions_run() {
    let stand = Stand::new().await;
    let missing = ["list", "watch", "patch"].map(|verb| (verb, "functionconfigs"));
    let missing = [&missing[..], &[("patch", "functionconfigs/status")]].concat();
    let limited = Limited::without(&stand, &missing).await;
    limited.apply("a", pods_of("a")).await;
    limited.serves().await;
    let text = "FunctionConfigs are not seen; grant the runner's service account the Role of the deployment manifests in \
                the function namespace, with API group config.porch.kpt.dev: list and watch on functionconfigs";
    limited.says(text).await;
    limited.allow().await;
    limited.applied("a").await;
    limited.said_once(text);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_list() {
    let stand = Stand::new().await;
    let limited = Limited::without(&stand, &[("list", "functionconfigs")]).await;
    limited.apply("a", pods_of("a")).await;
    limited.serves().await;
    let text = "FunctionConfigs are not seen; grant the runner's service account the Role";
    limited.says(text).await;
    let there = stand.configs.list().await;
    assert_eq!((there.len(), observed(&there[0])), (1, None));
    limited.allow().await;
    limited.applied("a").await;
    limited.said_once(text);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_watch() {
    let stand = Stand::new().await;
    let limited = Limited::without(&stand, &[("watch", "functionconfigs")]).await;
    for ttl in ["5m", "6m"] {
        limited.apply("a", json!({"image": "a", "podExecutor": {"timeToLive": ttl}})).await;
        limited.applied("a").await;
    }
    limited.delete_with_finalizer("a").await;
    stand.configs.gone("a").await;
    limited.serves().await;
    limited.said_once("FunctionConfigs are only listed now and then; grant");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_patch() {
    let stand = Stand::new().await;
    let limited = Limited::without(&stand, &[("patch", "functionconfigs")]).await;
    for name in ["a", "b"] {
        limited.apply(name, pods_of(name)).await;
        limited.applied(name).await;
        limited.delete_with_finalizer(name).await;
    }
    let text = "so its finalizer keeps it from being deleted; grant";
    limited.says(text).await;
    // The rest goes on.
    limited.apply("c", pods_of("c")).await;
    limited.applied("c").await;
    limited.serves().await;
    assert_eq!(stand.configs.list().await.len(), 3);
    limited.said_once(text);
    assert!(limited.runner.log().contains(": patch on functionconfigs"));
    limited.allow().await;
    stand.configs.gone("a").await;
    stand.configs.gone("b").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_patch_of_the_status() {
    let stand = Stand::new().await;
    let limited = Limited::without(&stand, &[("patch", "functionconfigs/status")]).await;
    for name in ["a", "b"] {
        limited.apply(name, pods_of(name)).await;
    }
    let text = "so its status is old; grant";
    limited.says(text).await;
    limited.serves().await;
    limited.delete_with_finalizer("b").await;
    stand.configs.gone("b").await;
    let there = stand.configs.list().await;
    assert_eq!((there.len(), observed(&there[0]), error(&there[0])), (1, None, ""));
    limited.said_once(text);
    assert!(limited.runner.log().contains(": patch on functionconfigs/status"));
    limited.allow().await;
    limited.applied("a").await;
}

/// The rights of newer Porch's Role are more, and do as well.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn with_all_rights_nothing_is_said() {
    let stand = Stand::new().await;
    let limited = Limited::without(&stand, &[]).await;
    limited.apply("a", pods_of("a")).await;
    limited.applied("a").await;
    limited.delete_with_finalizer("a").await;
    stand.configs.gone("a").await;
    assert!(!limited.runner.log().contains("grant the runner's service account"));
}
