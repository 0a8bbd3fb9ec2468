//! Routers and runners that find runners by EndpointSlices, which are made by hand: nobody is there.

use std::path::Path;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams};
use porch_fn_tests::cluster::{Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag};
use serde_json::{Value, json};

use crate::rig::logs;

const READY: &str = r#"{"ready": true}"#;
const NOT_READY: &str = r#"{"ready": false, "serving": false, "terminating": false}"#;
const DRAINING: &str = r#"{"ready": false, "serving": true, "terminating": true}"#;
const ENDING: &str = r#"{"ready": false, "serving": false, "terminating": true}"#;

/// Arrivals are gathered for 2 s.
const JOINED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// Leaving is immediate, and so is the first arrival.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(1);

/// What a router logs when it hears of a change.
const HEARD: &str = "endpoints changed";
const JOINED: &str = "runner joined";
const LEFT: &str = "runner left";

struct Stand {
    cluster: Cluster,
    namespace: Namespace,
    sandbox: Sandbox,
}

// === impl Stand ===

impl Stand {
    /// With a headless Service that selects nothing.
    async fn new() -> Self {
        let cluster = Cluster::connect().await;
        let namespace = cluster.namespace().await;
        let stand = Self { cluster, namespace, sandbox: Sandbox::new() };
        let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        stand.namespace.make::<Service>(json!({"metadata": {"name": "runners"}, "spec": spec})).await;
        stand
    }

    fn target(&self) -> String {
        format!("kubernetes:///{}/runners:9445", self.namespace.name())
    }

    async fn router(&self, kubeconfig: &Path) -> Server {
        let runners = format!("--runners={}", self.target());
        self.sandbox.server("porch-fn-router", [runners.into(), flag("kubeconfig", kubeconfig)]).await
    }

    /// Makes or changes a slice of addresses and their conditions.
    async fn slice(&self, name: &str, family: &str, endpoints: &[(&str, &str)]) {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(address, conditions)| {
                let conditions: Value = serde_json::from_str(conditions).unwrap();
                json!({"addresses": [address], "conditions": conditions})
            })
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "runners"}},
            "addressType": family,
            "endpoints": endpoints,
            "ports": [{"port": 80}],
        });
        let apply = PatchParams::apply("tests").force();
        self.namespace.api::<EndpointSlice>().patch(name, &apply, &Patch::Apply(slice)).await.unwrap();
    }
}

async fn shards(router: &Server) -> Vec<String> {
    let page = router.json("/shards").await;
    let shards = page["shards"].as_array().unwrap();
    shards.iter().map(|shard| shard["address"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the router knows exactly these.
async fn knows(router: &Server, expected: &[&str]) {
    eventually(&format!("the router knows {expected:?}"), async || {
        (shards(router).await == expected).then_some(())
    })
    .await;
}

/// How long after the last news before it the log has this text, each time: how fast the router is, whatever the API
/// server and this test take.
fn delays(router: &Server, text: &str) -> Vec<SignedDuration> {
    let mut news = None;
    let mut delays = Vec::new();
    for line in router.log().lines() {
        let at = || line.split_whitespace().next().unwrap().parse::<Timestamp>().expect("the line's time");
        if line.contains(HEARD) {
            news = Some(at());
        } else if line.contains(text) {
            delays.push(at().duration_since(news.expect("news come first")));
        }
    }
    delays
}

/// An empty answer is one.
async fn ready(router: &Server) {
    eventually("the router is ready", async || (router.page("/readyz").await.0 == 200).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn conditions_decide_who_is_on_the_ring() {
    let [a, b, c, d] = ["10.250.1.1", "10.250.1.2", "10.250.1.3", "10.250.1.4"];
    let [a1, b1, c1] = ["10.250.1.1:9445", "10.250.1.2:9445", "10.250.1.3:9445"];
    let stand = Stand::new().await;
    let router = stand.router(&stand.cluster.kubeconfig()).await;
    ready(&router).await;
    stand.slice("one", "IPv4", &[(a, READY), (d, NOT_READY)]).await;
    knows(&router, &[a1]).await;
    // One is in two slices.
    let (one, two) = ([(a, READY), (b, READY), (d, ENDING)], [(c, "{}"), (b, READY)]);
    tokio::join!(stand.slice("one", "IPv4", &one), stand.slice("two", "IPv4", &two));
    knows(&router, &[a1, b1, c1]).await;
    assert_eq!(router.metric("porch_fn_router_ring_changes_total").await, Some(2), "arrivals are gathered");

    for (slice, endpoints, expected) in [
        ("one", vec![(a, NOT_READY), (b, READY)], vec![b1, c1]),
        ("two", vec![(c, DRAINING)], vec![b1]),
        ("one", vec![(a, READY), (b, READY)], vec![a1, b1]),
        // Who drains serves when nobody else does.
        ("one", vec![(a, ENDING), (b, DRAINING)], vec![b1, c1]),
    ] {
        stand.slice(slice, "IPv4", &endpoints).await;
        knows(&router, &expected).await;
    }
    for name in ["one", "two"] {
        stand.namespace.api::<EndpointSlice>().delete(name, &DeleteParams::default()).await.unwrap();
    }
    knows(&router, &[]).await;

    let (joined, left) = (delays(&router, JOINED), delays(&router, LEFT));
    figure(&format!("from news to ring: joined {joined:?}, left {left:?}"));
    assert!(joined[0] <= AT_ONCE && joined.iter().all(|joined| *joined <= JOINED_WITHIN), "{joined:?}");
    assert!(left.len() > 2 && left.iter().all(|left| *left <= AT_ONCE), "{left:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn rights_to_endpoints_alone_do() {
    let stand = Stand::new().await;
    let endpoints = json!({
        "metadata": {"name": "runners", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": "10.250.1.1"}], "ports": [{"port": 80}]}],
    });
    stand.namespace.make::<Endpoints>(endpoints).await;
    let account = stand.namespace.account("router").await;
    let endpoints = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["endpoints".to_owned()]),
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    account.allow(&stand.namespace, &[endpoints]).await;
    let router = stand.router(&account.kubeconfig(&stand.sandbox).await).await;
    knows(&router, &["10.250.1.1:9445"]).await;
    let missing = format!(
        "grant this process's account get, list and watch on endpointslices.discovery.k8s.io in namespace {}",
        stand.namespace.name()
    );
    logs(&router, &missing).await;

    assert_eq!(router.log().matches(&missing).count(), 1);
    assert!(!router.log().contains("discovery fails"));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn runners_find_their_peers_without_pods_of_their_own() {
    let stand = Stand::new().await;
    stand.slice("one", "IPv4", &[("10.250.1.1", READY), ("10.250.1.2", READY)]).await;
    // The first is a peer, the second is not yet.
    for (address, more, listed) in [
        ("10.250.1.1:9445", &["--pod-backend=none"], true),
        ("10.250.1.3:9445", &["--disable-runtimes=pod"], false),
    ] {
        let flags = [
            flag("peers", stand.target()),
            flag("shard-address", address),
            flag("kubeconfig", stand.cluster.kubeconfig()),
        ];
        let runner =
            stand.sandbox.server("porch-fn-runner", flags.into_iter().chain(more.map(Into::into))).await;
        let shows = async |members: usize, listed: bool| {
            eventually(&format!("{members} peers, listed: {listed}"), async || {
                let (_, text) = runner.page("/metrics").await;
                let has = |name: &str, value: usize| {
                    text.lines()
                        .any(|line| line.ends_with(&format!("{name} {value}")) && !line.starts_with('#'))
                };
                (has("peers", members) && has("listed", usize::from(listed))).then_some(())
            })
            .await;
        };
        shows(2, listed).await;
        if !listed {
            logs(&runner, "this runner is not among --peers").await;
            let all = [("10.250.1.1", READY), ("10.250.1.2", READY), ("10.250.1.3", READY)];
            stand.slice("one", "IPv4", &all).await;
            shows(3, true).await;
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_a_way_to_the_api_server_it_does_not_start() {
    let sandbox = Sandbox::new();
    for (name, flags) in [
        ("porch-fn-router", &["--runners=kubernetes:///porch-system/runners:9445"][..]),
        (
            "porch-fn-runner",
            &["--peers=kubernetes:///porch-system/runners:9445", "--shard-address=10.0.0.1"][..],
        ),
    ] {
        let mut command = sandbox.command(binary(name));
        command.args(["--port=0", "--admin-port=0"]).args(flags).env_remove("KUBERNETES_SERVICE_HOST");
        let ended = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(64), "{said}");
        for part in
            ["kubernetes:///porch-system/runners:9445", "--kubeconfig", flags[0].split('=').next().unwrap()]
        {
            assert!(said.contains(part), "{said}");
        }
    }
}
