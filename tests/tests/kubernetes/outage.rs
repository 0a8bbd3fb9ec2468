//! The API server away altogether: what is warm goes on as if nothing were.
//!
//! This breaks the cluster for all who use it: run last, one by one, and never on a user's cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{ApiProxy, Cluster, Namespace, Own};
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use tokio::time::{Instant, sleep, timeout};

use super::calls::{INPUT, count};

const CALLERS: usize = 8;
/// How soon after the outage a function can be started. Kubernetes starts no pods on a node that
/// counts as lost, until it is heard of again.
const RECOVERED_WITHIN: Duration = Duration::from_secs(30);

/// One runner with two warm functions, and a third that nobody has called.
struct Stand {
    images: Vec<String>,
    client: Client,
    runner: Server,
    // Last, so that nothing works on them while they are taken away.
    namespace: Namespace,
    _sandbox: Sandbox,
}

// === impl Stand ===

impl Stand {
    async fn start(cluster: &Cluster, proxy: Option<&ApiProxy>, connect: &str) -> Self {
        let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
        let mut images = Vec::new();
        for name in ["outage/a:v1", "outage/b:v1", "outage/new:v1"] {
            images.push(cluster.function_named(name).await);
        }
        let listed: Vec<_> = images.iter().map(String::as_str).collect();
        let kubeconfig =
            proxy.map_or_else(|| cluster.kubeconfig().to_owned(), |proxy| proxy.kubeconfig(&sandbox));
        let more = [format!("--pod-connect={connect}"), "--scan-interval=1s".to_owned()];
        let runner = namespace.runner_as(&sandbox, kubeconfig, &listed, &[&more[0], &more[1]]).await;
        let client = Client::new(runner.address());
        for image in &images[..2] {
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
        }
        Self { images, client, runner, namespace, _sandbox: sandbox }
    }

    fn load(&self) -> Load {
        Load::start(self.runner.address(), CALLERS, &self.images[..2])
    }

    /// Two warm pods and nothing else, as before.
    async fn is_calm(&self) {
        for image in &self.images[..2] {
            for (field, expected) in [("in_flight", 0), ("waiting", 0), ("ready", 1), ("starting", 0)] {
                let what = format!("{field} of {image} is {expected}");
                let look = async || (count(&self.runner, image, field).await == expected).then_some(());
                eventually(&what, look).await;
            }
        }
    }
}

/// Waits until one more of the load's calls is answered.
async fn answers(load: &Load) {
    let before = load.answered();
    eventually("the load is answered", async || (load.answered() > before).then_some(())).await;
}

/// Lets the load go on, and wants it to.
async fn goes_on(load: &Load, lasting: Duration) {
    let before = load.answered();
    sleep(lasting).await;
    assert!(load.answered() > before, "the load stands still");
}

/// A component of the cluster, stopped. It goes on in any case: other tests need it.
struct Stopped(Own, &'static str);

// === impl Stopped ===

impl Stopped {
    async fn stop(own: &Own, component: &'static str) -> Self {
        let stopped = Self(own.clone(), component);
        own.signal(component, "STOP").await;
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let (own, component) = (self.0.clone(), self.1);
        // The test's own runtime may be ending, so another one does it.
        let gone_on = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(own.signal(component, "CONT"));
        });
        if gone_on.join().is_err() {
            eprintln!("{component} is left stopped");
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_stops_costs_no_call_by_service() {
    outage("service", Duration::from_secs(15)).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_stops_costs_no_call_by_address() {
    outage("pod-ip", Duration::from_secs(15)).await;
}

async fn outage(connect: &str, lasting: Duration) {
    let cluster = Cluster::connect().await;
    let Some(own) = cluster.own() else { return };
    let stand = Stand::start(&cluster, None, connect).await;
    let pods = stand.namespace.pods().await;
    let load = stand.load();
    answers(&load).await;

    let stopped = Stopped::stop(own, "kube-apiserver").await;
    let silent = timeout(Duration::from_secs(1), cluster.client().apiserver_version()).await;
    assert!(silent.is_err(), "a stopped server does not answer");
    // The kubelet starts it again without asking anybody.
    goes_on(&load, lasting / 3).await;
    assert!(own.kill_processes(&pods[0]) > 0);
    goes_on(&load, lasting * 2 / 3).await;
    let during = load.answered();
    drop(stopped);
    let resumed = Instant::now();

    let new = &stand.images[2];
    assert_eq!(stand.client.call(new, INPUT).await.output(), INPUT);
    let recovered = resumed.elapsed();
    assert!(recovered < RECOVERED_WITHIN, "{recovered:?}");
    // What was judged late must not cost calls either.
    goes_on(&load, Duration::from_secs(10)).await;
    let report = load.stop().await;
    figure(&format!(
        "API server stopped for {lasting:?} by {connect}: {during} calls until its end, {} in all, {:?} failed, slowest \
         {:.1?}; a new function's first call after it: {recovered:.1?}",
        report.succeeded, report.failed, report.slowest
    ));
    report.all_succeeded();
    stand.is_calm().await;
    let same = |now: &[Pod]| {
        let known = |pod: &Pod| now.iter().any(|other| other.uid() == pod.uid());
        (now.len() == 3 && pods.iter().all(known)).then_some(())
    };
    stand.namespace.until("no pod was replaced", same).await;
    follows_pods(&stand).await;
}

/// The watch goes on: the runner hears of a delete.
async fn follows_pods(stand: &Stand) {
    let new = &stand.images[2];
    let of_new = |pods: &[Pod]| {
        let of = |pod: &&Pod| pod.annotations().get("fn.kpt.dev/image-reference").is_some_and(|of| of == new);
        pods.iter().find(of).cloned()
    };
    let pod = stand.namespace.until("the new function has a pod", of_new).await;
    let start = Instant::now();
    stand.namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("the runner hears of it", async || {
        (count(&stand.runner, new, "ready").await == 0).then_some(())
    })
    .await;
    figure(&format!("a pod deleted after the outage: the runner knew after {:.1?}", start.elapsed()));
    assert_eq!(stand.client.call(new, INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_refuses_connections_costs_no_warm_call() {
    let lasting = Duration::from_secs(20);
    let cluster = Cluster::connect().await;
    let mut proxy = ApiProxy::start(&cluster, 0).await;
    let stand = Stand::start(&cluster, Some(&proxy), "service").await;
    let pods = stand.namespace.pods().await;
    let load = stand.load();
    answers(&load).await;
    proxy.close().await;
    goes_on(&load, lasting).await;
    let refused = load.answered();
    proxy.open().await;
    let resumed = Instant::now();
    let new = &stand.images[2];
    assert_eq!(stand.client.call(new, INPUT).await.output(), INPUT);
    let recovered = resumed.elapsed();
    assert!(recovered < RECOVERED_WITHIN, "{recovered:?}");
    let report = load.stop().await;
    figure(&format!(
        "API server refused connections for {lasting:?}: {refused} calls until its end, {:?} failed, slowest {:.1?}; a \
         new function's first call after it: {recovered:.1?}",
        report.failed, report.slowest
    ));
    report.all_succeeded();
    stand.is_calm().await;
    let now = stand.namespace.pods().await;
    assert!(pods.iter().all(|pod| now.iter().any(|other| other.uid() == pod.uid())), "a pod was replaced");
    follows_pods(&stand).await;
}

/// Runs of minutes, for `tests/faults`.
mod slow {
    use super::*;

    use porch_fn_tests::cluster::{Discovery, Plan};

    use super::super::scaling;

    const LASTING: Duration = Duration::from_mins(1);

    fn is_ready(pod: &Pod) -> bool {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// The node counts as lost when the API server is back: no router, no runner and no function
    /// pod is ready, and all of them serve.
    async fn fleet(discovery: Discovery) {
        let cluster = Cluster::connect().await;
        let Some(own) = cluster.own() else { return };
        let plan = Plan::new(&cluster, discovery, 3);
        let images = scaling::functions(&cluster, "outage-fleet").await;
        let stand = scaling::Stand::start(&cluster, &plan, images).await;
        let fleet = stand.installation.home().record::<Pod>().await;
        let what = format!("API server stopped for {LASTING:?}, {discovery:?}");
        let stopped = async || {
            // A kubelet that is heard of at once may be in time for the node.
            let kubelet = Stopped::stop(own, "kubelet").await;
            let api_server = Stopped::stop(own, "kube-apiserver").await;
            sleep(LASTING).await;
            drop(api_server);
            eventually("the node counts as lost", async || {
                (fleet.most_at_once(|pod| !is_ready(pod)) == 5).then_some(())
            })
            .await;
            sleep(Duration::from_secs(10)).await;
            drop(kubelet);
            sleep(LASTING / 2).await;
        };
        stand.under_load(&what, stopped).await;
        stand.no_pod_was_made().await;
    }

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn an_api_server_that_stops_for_a_minute_costs_a_fleet_no_call_by_slices() {
        Box::pin(fleet(Discovery::EndpointSlices)).await;
    }

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn an_api_server_that_stops_for_a_minute_costs_a_fleet_no_call_by_dns() {
        Box::pin(fleet(Discovery::Dns)).await;
    }

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn an_api_server_that_stops_for_a_minute_costs_no_call_by_service() {
        outage("service", LASTING).await;
    }

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn an_api_server_that_stops_for_a_minute_costs_no_call_by_address() {
        outage("pod-ip", LASTING).await;
    }
}
