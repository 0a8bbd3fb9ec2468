//! The API server is unavailable. Calls of functions with pods succeed as before.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::cluster::{ApiProxy, Machine};
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{INPUT, REFERENCE, Runner, Setup, wait_count};

const CALLERS: usize = 8;
const OUTAGE: Duration = Duration::from_secs(15);
/// The maximum time from when a new pod accepts connections until a call is answered. The time
/// until the pod accepts connections depends on Kubernetes: after an outage its components wait up
/// to 30 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A stopped component of the cluster. It continues when this value is dropped.
pub(crate) struct Stopped(Machine, &'static str);

// === impl Stopped ===

impl Stopped {
    pub(crate) async fn stop(machine: &Machine, component: &'static str) -> Self {
        let stopped = Self(machine.clone(), component);
        machine.signal(component, "STOP").await;
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.run_in_drop("signal", &[self.1, "CONT"]);
    }
}

/// Lets the load run for this time, and asserts that calls are answered.
async fn assert_load_continues(load: &Load, time: Duration) {
    let before = load.answered();
    sleep(time).await;
    assert!(load.answered() > before, "no call was answered");
}

/// Waits until the image's pod accepts connections at the address that the runner uses.
async fn wait_accepting(setup: &Setup, image: &str, connect: &str) {
    let ip_of = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.annotations().get(REFERENCE).is_some_and(|of| of == image))?;
        let ip = pod.status.as_ref()?.pod_ip.clone()?;
        Some((pod.clone(), ip))
    };
    let (pod, mut ip) = setup.namespace.wait_until("the new pod has an IP", ip_of).await;
    if connect == "service" {
        ip = setup.service_of(&pod).await.spec.unwrap().cluster_ip.unwrap();
    }
    let address = SocketAddr::new(ip.parse().unwrap(), 9446);
    let connected = async || timeout(Duration::from_secs(1), TcpStream::connect(address)).await.ok()?.ok();
    eventually("the new pod accepts connections", connected).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_stopped_api_server_fails_no_call_with_services() {
    outage(false, "service", OUTAGE).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_api_server_that_refuses_connections_fails_no_call_with_pod_ips() {
    outage(true, "pod-ip", OUTAGE).await;
}

/// Tests a runner with two functions that have pods and a third without one. If `refuses` is true,
/// the API server refuses connections. Otherwise it accepts them and does not answer.
pub(crate) async fn outage(refuses: bool, connect: &str, lasting: Duration) {
    let setup = Setup::new().await;
    let mut proxy = ApiProxy::start(&setup.cluster, 0).await;
    let mut images = Vec::new();
    for name in ["outage/a:v1", "outage/b:v1", "outage/new:v1"] {
        images.push(setup.cluster.function_named(name).await);
    }
    let listed: Vec<_> = images.iter().map(String::as_str).collect();
    let kubeconfig = if refuses { proxy.kubeconfig(&setup.sandbox) } else { setup.cluster.kubeconfig() };
    let connect_flag = format!("--pod-connect={connect}");
    let flags = [connect_flag.as_str(), "--scan-interval=1s"];
    let server = setup.namespace.runner_as(&setup.sandbox, kubeconfig, &listed, &flags).await;
    let runner = Runner::new(server, &images[2]);
    for image in &images[..2] {
        assert_eq!(runner.client.call(image, INPUT).await.output(), INPUT);
    }
    let pods = setup.pods().await;
    let load = Load::start(runner.server.address(), CALLERS, &images[..2]);
    eventually("the load is answered", async || (load.answered() > 0).then_some(())).await;

    let stopped = if refuses {
        proxy.close().await;
        None
    } else {
        let stopped = Stopped::stop(setup.cluster.machine(), "kube-apiserver").await;
        let silent = timeout(Duration::from_secs(1), setup.cluster.client().apiserver_version()).await;
        assert!(silent.is_err(), "a stopped server does not answer");
        Some(stopped)
    };
    assert_load_continues(&load, lasting / 3).await;
    // The kubelet restarts the container without the API server.
    assert!(setup.cluster.machine().kill_processes(&pods[0]) > 0);
    assert_load_continues(&load, lasting * 2 / 3).await;
    drop(stopped);
    proxy.open().await;
    let resumed = Instant::now();

    let answered = async {
        runner.call_ok().await;
        resumed.elapsed()
    };
    let accepts = async {
        wait_accepting(&setup, &images[2], connect).await;
        resumed.elapsed()
    };
    let (answered, accepts) = tokio::join!(answered, accepts);
    assert!(answered < accepts + ANSWERED_WITHIN, "{answered:?}, {accepts:?}");
    // Also after the outage, the runner must not do anything that fails calls.
    assert_load_continues(&load, Duration::from_secs(10)).await;
    let report = load.stop().await;
    figure(&format!(
        "API server unavailable for {lasting:?}, refuses connections: {refuses}, {connect}: {report}; a new function's pod \
         accepts connections after {accepts:.1?}, and its first call is answered after {answered:.1?}",
    ));
    report.assert_all_succeeded();
    for image in &images[..2] {
        for (field, expected) in [("in_flight", 0), ("waiting", 0), ("ready", 1), ("starting", 0)] {
            wait_count(&runner.server, image, field, expected).await;
        }
    }
    let same = |now: &[Pod]| {
        let known = |pod: &Pod| now.iter().any(|other| other.uid() == pod.uid());
        (now.len() == 3 && pods.iter().all(known)).then_some(())
    };
    setup.namespace.wait_until("no pod was replaced", same).await;

    // The watch works again: the runner learns of a deleted pod.
    let pods = setup.pods().await;
    let new = pods.iter().find(|pod| pod.annotations()[REFERENCE] == images[2]).unwrap();
    setup.delete(new, &DeleteParams::default()).await;
    runner.wait_count("ready", 0).await;
    runner.call_ok().await;
}
