//! Faults between runners and the API server, with real pods. Calls are answered in time, there are
//! never more pods than allowed, and nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::cluster::{ApiProxy, Cluster, Fault, Machine, Recorder, Rule};
use porch_fn_tests::process::{Server, figure};
use tokio::time::{Instant, interval, timeout};
use tonic::Code;

use crate::rig::{CONNECTS, INPUT, REFERENCE, Setup, alive, wait_count};

/// The deadline of every call. A first call needs far less.
const DEADLINE: Duration = Duration::from_secs(45);
/// The maximum time from a call's deadline to its answer.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum time until runners know all pods again. A runner detects a stalled watch after 75 s.
const SETTLED_WITHIN: Duration = Duration::from_mins(2);

/// Runners that reach the API server through a proxy. The test itself bypasses the proxy.
pub(crate) struct ProxiedRunners {
    pub(crate) clients: Vec<Arc<Client>>,
    pub(crate) runners: Vec<Server>,
    pub(crate) proxy: ApiProxy,
    record: Recorder<Pod>,
    // Last, so that it is dropped after the runners and the proxy that use it.
    pub(crate) setup: Setup,
}

// === impl ProxiedRunners ===

impl ProxiedRunners {
    /// Starts the runners and the proxy. The proxy applies these rules from the start.
    pub(crate) async fn start(
        rules: Vec<Rule>,
        seed: u64,
        runners: usize,
        images: &[&str],
        more: &[&str],
    ) -> Self {
        let setup = Setup::new().await;
        let proxy = ApiProxy::start(&setup.cluster, seed).await;
        proxy.set(rules);
        let record = setup.namespace.record::<Pod>().await;
        let kubeconfig = proxy.kubeconfig(&setup.sandbox);
        let more = [&["--scan-interval=1s"], more].concat();
        // A fleet has fixed addresses, so only one test at a time can start one.
        let runners = if runners == 1 {
            vec![setup.namespace.runner_as(&setup.sandbox, kubeconfig, images, &more).await]
        } else {
            setup.fleet("127.0.8", &vec![kubeconfig; runners], images, &more).await
        };
        let clients = runners.iter().map(|runner| Arc::new(Client::new(runner.address()))).collect();
        Self { clients, runners, proxy, record, setup }
    }

    /// Calls a function through one of the runners, and asserts that the answer comes in time.
    pub(crate) async fn call(&self, runner: usize, image: &str) -> (Answer, Duration) {
        call(&self.clients[runner], image, INPUT).await
    }

    /// Like [`call`](Self::call), and asserts that the call succeeds.
    pub(crate) async fn call_ok(&self, what: &str, runner: usize, image: &str) -> Duration {
        let (answer, took) = self.call(runner, image).await;
        assert_eq!((answer.code, answer.message.as_str()), (Code::Ok, ""), "{what}, after {took:.1?}");
        assert_eq!(answer.resource_list, INPUT, "{what}");
        took
    }

    pub(crate) async fn delete(&self, pod: &Pod, params: &DeleteParams) {
        // A runner may have deleted the pod already.
        let _ = self.setup.namespace.api::<Pod>().delete(&pod.name_any(), params).await;
    }

    /// Waits until every runner knows exactly the existing pods, no pod is starting or terminating,
    /// and every Service has its pod.
    pub(crate) async fn wait_settled(&self, what: &str) {
        let mut seen = String::new();
        let settled = timeout(SETTLED_WITHIN, async {
            let mut ticks = interval(Duration::from_millis(200));
            loop {
                ticks.tick().await;
                let pods = self.setup.namespace.pods().await;
                let services = self.setup.namespace.services().await;
                let mut faults = unpaired(&pods, &services);
                for runner in &self.runners {
                    let (mut ready, mut others) = (0, 0);
                    for function in runner.json("/pods").await.as_array().unwrap() {
                        ready += function["ready"].as_u64().unwrap();
                        for field in ["starting", "terminating", "in_flight", "waiting"] {
                            others += function[field].as_u64().unwrap();
                        }
                    }
                    if (ready, others) != (pods.len() as u64, 0) {
                        faults.push(format!(
                            "a runner has {ready} ready pods, and {others} other pods and calls"
                        ));
                    }
                }
                if faults.is_empty() {
                    return;
                }
                seen = format!("{} pods, {} Services: {faults:?}", pods.len(), services.len());
            }
        });
        let start = Instant::now();
        assert!(settled.await.is_ok(), "{what}: not settled after {SETTLED_WITHIN:?}: {seen}");
        figure(&format!("{what}: settled {:.1?} after the faults' end", start.elapsed()));
    }

    /// Asserts that no function ever had more than `limit` + 1 pods. The additional pod may start
    /// while another pod does not respond or is about to be deleted.
    pub(crate) fn assert_pod_limit(&self, what: &str, limit: usize, images: &[&str]) {
        for image in images {
            let most = self.record.most_at_once(|pod| {
                let of = pod.annotations().get(REFERENCE);
                alive(pod) && of.is_some_and(|of| of == image)
            });
            assert!((1..=limit + 1).contains(&most), "{what}: {most} pods of {image}");
        }
    }
}

/// Calls with a deadline, and panics if no answer comes in time.
pub(crate) async fn call(client: &Client, image: &str, input: &str) -> (Answer, Duration) {
    let start = Instant::now();
    let answer = timeout(DEADLINE + GRACE, client.call_within(image, input.to_owned(), DEADLINE)).await;
    let answer = answer.unwrap_or_else(|_| panic!("a call of {image} was not answered"));
    (answer, start.elapsed())
}

/// Pods without a Service, and Services without a pod.
fn unpaired(pods: &[Pod], services: &[Service]) -> Vec<String> {
    let owner = |service: &Service| Some(service.owner_references().first()?.uid.clone());
    let without_pod = |service: &&Service| pods.iter().all(|pod| pod.uid() != owner(service));
    let without_service = |pod: &&Pod| services.iter().all(|service| owner(service) != pod.uid());
    let services_left = services
        .iter()
        .filter(without_pod)
        .map(|service| format!("Service {} has no pod", service.name_any()));
    let pods_left =
        pods.iter().filter(without_service).map(|pod| format!("pod {} has no Service", pod.name_any()));
    services_left.chain(pods_left).collect()
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_deleted_while_only_the_watch_is_cut_is_replaced_within_one_retry() {
    let cluster = Cluster::connect().await;
    let image = cluster.function_image();
    for connect in CONNECTS {
        for (how, fault) in [("cut", Fault::CutWatch), ("stalled", Fault::StallWatch)] {
            let what = format!("a pod deleted while the watch is {how}, by {connect}");
            let proxied =
                ProxiedRunners::start(Vec::new(), 0, 1, &[&image], &[&format!("--pod-connect={connect}")])
                    .await;
            proxied.call_ok(&what, 0, &image).await;
            for grace in [None, Some(0)] {
                proxied.proxy.set([Rule::new(fault)]);
                let pod = proxied.setup.namespace.pods().await.remove(0);
                let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
                proxied.delete(&pod, &params).await;
                proxied.setup.wait_gone(&pod).await;
                let took = proxied.call_ok(&what, 0, &image).await;
                figure(&format!("{what}, grace {grace:?}: the next call took {took:.1?}"));
                assert!(proxied.proxy.outcomes().contains(&Some(fault)), "{what}: no fault was injected");
            }
            proxied.assert_pod_limit(&what, 1, &[&image]);
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_call_does_not_wait_for_a_pod_whose_end_is_not_reported() {
    // A call that waited for the pod's grace period and the runner's timeout would take 40 s.
    const BOUND: Duration = Duration::from_secs(20);
    let cluster = Cluster::connect().await;
    let image = cluster.function_image();
    let proxied = ProxiedRunners::start(Vec::new(), 0, 1, &[&image], &[]).await;
    proxied.call_ok("before", 0, &image).await;
    let pod = proxied.setup.namespace.pods().await.remove(0);
    let (client, long) = (&proxied.clients[0], format!("{INPUT}# test-sleep-ms: 8000\n"));
    let meanwhile = async {
        wait_count(&proxied.runners[0], &image, "in_flight", 1).await;
        proxied.delete(&pod, &DeleteParams::default()).await;
        wait_count(&proxied.runners[0], &image, "terminating", 1).await;
        proxied.proxy.set([Rule::new(Fault::StallWatch)]);
    };
    let ((answer, _), ()) = tokio::join!(call(client, &image, &long), meanwhile);
    assert_eq!(answer.output(), &long);
    proxied.setup.wait_gone(&pod).await;
    let took = proxied.call_ok("after", 0, &image).await;
    figure(&format!("a pod whose end was not reported: the next call took {took:.1?}"));
    assert!(took < BOUND, "{took:?}");
    assert_ne!(
        proxied.setup.namespace.pods().await[0].name_any(),
        pod.name_any(),
        "the old name was reused too early"
    );
}

/// Drops all packets from and to a pod, like a lost node, until this value is dropped.
struct CutOff(Machine);

impl CutOff {
    async fn cut(machine: &Machine, pod: &Pod) -> Self {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone()).expect("it runs");
        let rules = format!("priority 0; ip saddr {ip} drop; ip daddr {ip} drop;");
        let chains = ["input", "output", "forward"]
            .map(|hook| format!("chain {hook} {{ type filter hook {hook} {rules} }};"));
        machine.node(&["nft", &format!("table inet lost {{ {} }}", chains.concat())]).await;
        Self(machine.clone())
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        self.0.run_in_drop("node", &["nft", "delete", "table", "inet", "lost"]);
    }
}

/// The cluster has only one node, so the test cannot remove the node. Instead the pod loses its
/// network, and the next pod starts on the same node.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_function_whose_only_pod_is_lost_serves_again_within_seconds() {
    const ANSWERED_WITHIN: Duration = Duration::from_secs(6);
    let cluster = Cluster::connect().await;
    let image = cluster.function_image();
    for connect in CONNECTS {
        let flag = format!("--pod-connect={connect}");
        let proxied = ProxiedRunners::start(Vec::new(), 0, 1, &[&image], &[&flag]).await;
        proxied.call_ok(connect, 0, &image).await;
        let pod = proxied.setup.namespace.pods().await.remove(0);
        let (client, long) = (&proxied.clients[0], format!("{INPUT}# test-sleep-ms: 3000\n"));
        let lost = async {
            wait_count(&proxied.runners[0], &image, "in_flight", 1).await;
            let lost = CutOff::cut(cluster.machine(), &pod).await;
            (lost, proxied.call_ok("the next call", 0, &image).await)
        };
        let ((answer, in_flight), (lost, next)) = tokio::join!(call(client, &image, &long), lost);
        assert_eq!(answer.output(), &long);
        let after = proxied.call_ok("a later call", 0, &image).await;
        figure(&format!(
            "the only pod lost, by {connect}: the next call took {next:.1?}, a later one {after:.1?}, one of 3 s in flight \
             {in_flight:.1?}"
        ));
        assert!(next < ANSWERED_WITHIN, "{next:?}");
        assert!(after < Duration::from_secs(1), "{after:?}");
        assert!(in_flight < Duration::from_secs(25), "{in_flight:?}");
        drop(lost);
        proxied.assert_pod_limit("the only pod lost", 1, &[&image]);
    }
}
