//! The API server is unavailable: functions with warm pods continue as before.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::cluster::{ApiProxy, Own};
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{Bench, INPUT, REFERENCE, Runner, until_count};

const CALLERS: usize = 8;
const LASTING: Duration = Duration::from_secs(15);
/// The maximum time from the moment when a new pod accepts connections until a call is answered.
/// How soon the pod accepts connections after an outage depends on Kubernetes: its components wait
/// up to 30 s before they list again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A stopped component of the cluster. It continues when this value is dropped, because other tests
/// need it.
pub(crate) struct Stopped(Own, &'static str);

// === impl Stopped ===

impl Stopped {
    pub(crate) async fn stop(own: &Own, component: &'static str) -> Self {
        let stopped = Self(own.clone(), component);
        own.signal(component, "STOP").await;
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let (own, component) = (self.0.clone(), self.1);
        // The test's own runtime may be ending, so another runtime runs the command.
        let gone_on = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(own.signal(component, "CONT"));
        });
        if gone_on.join().is_err() {
            eprintln!("{component} is left stopped");
        }
    }
}

/// Lets the load run for this time, and asserts that calls are answered.
async fn goes_on(load: &Load, lasting: Duration) {
    let before = load.answered();
    sleep(lasting).await;
    assert!(load.answered() > before, "the load stands still");
}

/// Waits until the image's pod accepts connections in the same way in which the runner connects.
async fn accepts(bench: &Bench, image: &str, connect: &str) {
    let ip_of = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.annotations().get(REFERENCE).is_some_and(|of| of == image))?;
        let ip = pod.status.as_ref()?.pod_ip.clone()?;
        Some((pod.clone(), ip))
    };
    let (pod, mut ip) = bench.namespace.until("the new pod has an IP", ip_of).await;
    if connect == "service" {
        ip = bench.service_of(&pod).await.spec.unwrap().cluster_ip.unwrap();
    }
    let address = SocketAddr::new(ip.parse().unwrap(), 9446);
    let connected = async || timeout(Duration::from_secs(1), TcpStream::connect(address)).await.ok()?.ok();
    eventually("the new pod accepts connections", connected).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_stops_costs_no_call_by_service() {
    outage(false, "service", LASTING).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_refuses_connections_costs_no_call_by_address() {
    outage(true, "pod-ip", LASTING).await;
}

/// Tests one runner with two warm functions and a third that was never called. If the API server
/// does not refuse connections, it accepts them and does not answer.
pub(crate) async fn outage(refuses: bool, connect: &str, lasting: Duration) {
    let bench = Bench::new().await;
    let mut proxy = ApiProxy::start(&bench.cluster, 0).await;
    let mut images = Vec::new();
    for name in ["outage/a:v1", "outage/b:v1", "outage/new:v1"] {
        images.push(bench.cluster.function_named(name).await);
    }
    let listed: Vec<_> = images.iter().map(String::as_str).collect();
    let kubeconfig = if refuses { proxy.kubeconfig(&bench.sandbox) } else { bench.cluster.kubeconfig() };
    let connect_flag = format!("--pod-connect={connect}");
    let flags = [connect_flag.as_str(), "--scan-interval=1s"];
    let server = bench.namespace.runner_as(&bench.sandbox, kubeconfig, &listed, &flags).await;
    let runner = Runner::new(server, &images[2]);
    for image in &images[..2] {
        assert_eq!(runner.client.call(image, INPUT).await.output(), INPUT);
    }
    let pods = bench.pods().await;
    let load = Load::start(runner.server.address(), CALLERS, &images[..2]);
    eventually("the load is answered", async || (load.answered() > 0).then_some(())).await;

    let stopped = if refuses {
        proxy.close().await;
        None
    } else {
        let stopped = Stopped::stop(bench.cluster.own(), "kube-apiserver").await;
        let silent = timeout(Duration::from_secs(1), bench.cluster.client().apiserver_version()).await;
        assert!(silent.is_err(), "a stopped server does not answer");
        Some(stopped)
    };
    goes_on(&load, lasting / 3).await;
    // The kubelet restarts the container without the API server.
    assert!(bench.cluster.own().kill_processes(&pods[0]) > 0);
    goes_on(&load, lasting * 2 / 3).await;
    drop(stopped);
    proxy.open().await;
    let resumed = Instant::now();

    let answered = async {
        runner.succeeds().await;
        resumed.elapsed()
    };
    let accepts = async {
        accepts(&bench, &images[2], connect).await;
        resumed.elapsed()
    };
    let (answered, accepts) = tokio::join!(answered, accepts);
    assert!(answered < accepts + ANSWERED_WITHIN, "{answered:?}, {accepts:?}");
    // Decisions that the runner makes only now must not fail calls either.
    goes_on(&load, Duration::from_secs(10)).await;
    let report = load.stop().await;
    figure(&format!(
        "API server away for {lasting:?}, refuses connections: {refuses}, {connect}: {report}; a new function's pod \
         accepts connections {accepts:.1?} after it, and its first call is answered after {answered:.1?}",
    ));
    report.assert_all_succeeded();
    for image in &images[..2] {
        for (field, expected) in [("in_flight", 0), ("waiting", 0), ("ready", 1), ("starting", 0)] {
            until_count(&runner.server, image, field, expected).await;
        }
    }
    let same = |now: &[Pod]| {
        let known = |pod: &Pod| now.iter().any(|other| other.uid() == pod.uid());
        (now.len() == 3 && pods.iter().all(known)).then_some(())
    };
    bench.namespace.until("no pod was replaced", same).await;

    // The watch works again: the runner learns of a deleted pod.
    let pods = bench.pods().await;
    let new = pods.iter().find(|pod| pod.annotations()[REFERENCE] == images[2]).unwrap();
    bench.delete(new, &DeleteParams::default()).await;
    runner.counts("ready", 0).await;
    runner.succeeds().await;
}
