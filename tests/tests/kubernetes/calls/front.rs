//! What the tests of calls go through: a router, a runner, and the function's pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, flag};
use serde_json::json;
use tokio::time::Instant;

use super::{INPUT, until_count};
use crate::failing::template;

/// A function's pods in a namespace of their own, one runner, and a router before it.
pub(super) struct Front {
    pub(super) image: String,
    pub(super) runner: Server,
    pub(super) client: Client,
    pub(super) router: Server,
    // Last, so that nothing works on them while they are taken away.
    pub(super) namespace: Namespace,
    _sandbox: Sandbox,
}

impl Front {
    pub(super) async fn start(namespace: Namespace, more: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let image = namespace.cluster().function_image();
        let runner = namespace.runner(&sandbox, &[&image], more).await;
        let target = flag("runners", format!("static:///{}", runner.address()));
        let router = sandbox.server("porch-fn-router", [target]).await;
        router.until_well().await;
        let client = Client::new(router.address());
        Self { image, runner, client, router, namespace, _sandbox: sandbox }
    }

    pub(super) async fn connected_by(cluster: &Cluster, connect: &str) -> Self {
        Self::start(cluster.namespace().await, &[&format!("--pod-connect={connect}")]).await
    }

    /// The same, with pods that are not scheduled before they are released.
    pub(super) async fn held(cluster: &Cluster, connect: &str) -> Self {
        let namespace = cluster.namespace().await;
        template(&namespace, &["/tools/wrapper-server"], json!([{"name": "tests/held"}])).await;
        let (connect, own) =
            (format!("--pod-connect={connect}"), format!("--namespace={}", namespace.name()));
        Self::start(namespace, &[&connect, &own, "--function-pod-template=template"]).await
    }

    pub(super) async fn release(&self, pod: &Pod) {
        let patch = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
        self.namespace.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes the first call, which makes the pod.
    pub(super) async fn warm(&self) -> Pod {
        assert_eq!(self.client.call(&self.image, INPUT).await.output(), INPUT);
        let pods = self.namespace.pods().await;
        assert_eq!(pods.len(), 1);
        pods[0].clone()
    }

    pub(super) async fn delete(&self, pod: &Pod, params: &DeleteParams) {
        self.namespace.api::<Pod>().delete(&pod.name_any(), params).await.unwrap();
    }

    /// A call that takes so long, and what happens to the function's pod meanwhile. The call succeeds; when it does is
    /// returned. It goes past the router, which would send it again to a runner that the machine had stalled for 2 s.
    pub(super) async fn during(&self, takes: Duration, happens: impl AsyncFnOnce()) -> Instant {
        let input = format!("{INPUT}# test-sleep-ms: {}\n", takes.as_millis());
        let client = Client::new(self.runner.address());
        let call = async {
            let answer = client.call(&self.image, input.clone()).await;
            (answer, Instant::now())
        };
        let meanwhile = async {
            until_count(&self.runner, &self.image, "in_flight", 1).await;
            happens().await;
        };
        let ((answer, answered), ()) = tokio::join!(call, meanwhile);
        assert_eq!(answer.output(), &input);
        answered
    }

    /// How many calls the runner has run again since they broke off.
    pub(super) async fn run_again(&self) -> u64 {
        self.runner.metric("porch_fn_runner_retries_total{reason=\"broken\"}").await.unwrap()
    }

    pub(super) async fn no_load(&self) {
        for field in ["in_flight", "waiting"] {
            until_count(&self.runner, &self.image, field, 0).await;
        }
    }
}
