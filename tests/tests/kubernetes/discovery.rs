//! Routers and runners that find runners by EndpointSlices. But for one test, the slices are made by hand: what they say
//! is the point, not whether anybody is there.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams};
use porch_fn_tests::cluster::{ApiProxy, Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const READY: &str = r#"{"ready": true}"#;
const NOT_READY: &str = r#"{"ready": false, "serving": false, "terminating": false}"#;
const DRAINING: &str = r#"{"ready": false, "serving": true, "terminating": true}"#;
const ENDING: &str = r#"{"ready": false, "serving": false, "terminating": true}"#;

/// Arrivals are gathered for 2 s: the router has to hear of both by then, and surely has by this time.
const ARRIVED_WITHIN: SignedDuration = SignedDuration::from_millis(1500);
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

    fn rights(group: &str, resource: &str) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(vec![resource.to_owned()]),
            verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
            ..PolicyRule::default()
        }
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

/// When the log says each of these texts, and which of them: how fast the router is, whatever the API server and this
/// test take.
fn said<'a>(router: &Server, texts: &[&'a str]) -> Vec<(Timestamp, &'a str)> {
    let entry = |line: &str| {
        let text = texts.iter().find(|text| line.contains(**text))?;
        Some((line.split_whitespace().next()?.parse().expect("the line's time"), *text))
    };
    router.log().lines().filter_map(entry).collect()
}

/// How long after the last news before it the log says this, each time.
fn delays(router: &Server, text: &str) -> Vec<SignedDuration> {
    let mut news = None;
    let mut delays = Vec::new();
    for (at, said) in said(router, &[HEARD, text]) {
        if said == HEARD {
            news = Some(at);
        } else {
            delays.push(at.duration_since(news.expect("news come first")));
        }
    }
    delays
}

/// How often the router's ring was made anew.
async fn changes(router: &Server) -> usize {
    let (_, text) = router.page("/metrics").await;
    let line = text.lines().find_map(|line| line.split_once("ring_changes_total "));
    line.map_or(0, |(_, count)| count.parse().unwrap())
}

/// An empty answer is one.
async fn ready(router: &Server) {
    eventually("the router is ready", async || (router.page("/readyz").await.0 == 200).then_some(())).await;
}

async fn logs(server: &Server, text: &str) {
    eventually(&format!("the log says {text:?}"), async || server.log().contains(text).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn conditions_decide_who_is_on_the_ring() {
    let [a, b, c, d] = ["10.250.1.1", "10.250.1.2", "10.250.1.3", "10.250.1.4"];
    let [a1, b1, c1] = ["10.250.1.1:9445", "10.250.1.2:9445", "10.250.1.3:9445"];
    let mut tries = 0;
    let (stand, router, joined) = loop {
        let stand = Stand::new().await;
        let router = stand.router(stand.cluster.kubeconfig()).await;
        ready(&router).await;
        stand.slice("one", "IPv4", &[(a, READY), (d, NOT_READY)]).await;
        knows(&router, &[a1]).await;
        stand.slice("one", "IPv4", &[(a, READY), (b, READY), (d, ENDING)]).await;
        // In another slice, and twice.
        stand.slice("two", "IPv4", &[(c, "{}"), (b, READY)]).await;
        knows(&router, &[a1, b1, c1]).await;
        let heard = said(&router, &[HEARD]);
        let [.., (of_b, _), (of_c, _)] = heard[..] else { panic!("{heard:?}") };
        // On a busy machine the second may come too late to be gathered with the first.
        if of_c.duration_since(of_b) < ARRIVED_WITHIN {
            let (joined, _) = said(&router, &[JOINED]).pop().unwrap();
            break (stand, router, joined.duration_since(of_b));
        }
        tries += 1;
        assert!(tries < 3, "the second came late each time: {heard:?}");
    };
    assert_eq!(changes(&router).await, 2, "arrivals are gathered");

    stand.slice("one", "IPv4", &[(a, NOT_READY), (b, READY)]).await;
    knows(&router, &[b1, c1]).await;
    stand.slice("two", "IPv4", &[(c, DRAINING)]).await;
    knows(&router, &[b1]).await;
    // It is on the ring again, since it cools down by its runner's state and not by the ring.
    stand.slice("one", "IPv4", &[(a, READY), (b, READY)]).await;
    knows(&router, &[a1, b1]).await;

    stand.slice("one", "IPv4", &[(a, ENDING), (b, DRAINING)]).await;
    knows(&router, &[b1, c1]).await;
    assert_eq!(delays(&router, LEFT).len(), 3, "who drains serves when nobody else does");
    for name in ["one", "two"] {
        stand.namespace.api::<EndpointSlice>().delete(name, &DeleteParams::default()).await.unwrap();
    }
    knows(&router, &[]).await;

    let (first, left) = (delays(&router, JOINED)[0], delays(&router, LEFT));
    figure(&format!("from news to ring: first {first:#}, later ones {joined:#}, left {left:?}"));
    assert!(joined <= JOINED_WITHIN, "{joined:?}");
    assert!(
        left.len() > 2 && first <= AT_ONCE && left.iter().all(|left| *left <= AT_ONCE),
        "{first:?} {left:?}"
    );
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn pods_of_two_families_are_one_runner_each() {
    let stand = Stand::new().await;
    stand.slice("six", "IPv6", &[("fd00::1", READY), ("fd00::2", READY)]).await;
    let router = stand.router(stand.cluster.kubeconfig()).await;
    knows(&router, &["[fd00::1]:9445", "[fd00::2]:9445"]).await;
    stand.slice("four", "IPv4", &[("10.250.1.1", READY), ("10.250.1.2", READY)]).await;
    knows(&router, &["10.250.1.1:9445", "10.250.1.2:9445"]).await;
}

/// What the EndpointSlice controller makes of pods that come and go.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_deployment_is_scaled() {
    let stand = Stand::new().await;
    let labels = json!({"app": "served"});
    let spec = json!({"clusterIP": "None", "selector": labels, "ports": [{"port": 9446}]});
    stand.namespace.make::<Service>(json!({"metadata": {"name": "served"}, "spec": spec})).await;
    let container = json!({
        "name": "server",
        "image": stand.cluster.wrapper_image(),
        "command": ["/wrapper-server/wrapper-server", "--port", "9446", "--", "/bin/cp"],
        "readinessProbe": {"grpc": {"port": 9446}, "periodSeconds": 1},
    });
    stand
        .namespace
        .make::<Deployment>(json!({
            "metadata": {"name": "served"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }))
        .await;
    let target = format!("--runners=kubernetes:///{}/served:9446", stand.namespace.name());
    let kubeconfig = flag("kubeconfig", stand.cluster.kubeconfig());
    let router = stand.sandbox.server("porch-fn-router", [target.into(), kubeconfig]).await;
    for replicas in [1, 3, 1] {
        let scale = json!({"spec": {"replicas": replicas}});
        let deployments = stand.namespace.api::<Deployment>();
        deployments.patch("served", &PatchParams::default(), &Patch::Merge(scale)).await.unwrap();
        eventually(&format!("{replicas} are well"), async || {
            let page = router.json("/shards").await;
            let shards = page["shards"].as_array().unwrap();
            let well = shards.iter().filter(|shard| shard["state"] == "healthy").count();
            (shards.len() == replicas && well == replicas).then_some(())
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_the_api_server_the_last_set_stays() {
    let stand = Stand::new().await;
    stand.slice("one", "IPv4", &[("10.250.1.1", READY), ("10.250.1.2", READY)]).await;
    let mut proxy = ApiProxy::start(&stand.cluster, 1).await;
    let router = stand.router(&proxy.kubeconfig(&stand.sandbox)).await;
    knows(&router, &["10.250.1.1:9445", "10.250.1.2:9445"]).await;

    proxy.close().await;
    logs(&router, "discovery fails: keeping the last endpoints").await;
    stand.slice("one", "IPv4", &[("10.250.1.2", READY)]).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(shards(&router).await, ["10.250.1.1:9445", "10.250.1.2:9445"]);

    proxy.open().await;
    let start = Instant::now();
    knows(&router, &["10.250.1.2:9445"]).await;
    let found = start.elapsed();
    logs(&router, "discovery works again").await;
    figure(&format!("after an API server that was away for 3 s, changes are known within {found:?}"));
    assert_eq!(router.log().matches("discovery fails").count(), 1);
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
    account.allow(&stand.namespace, &[Stand::rights("", "endpoints")]).await;
    let router = stand.router(&account.kubeconfig(&stand.sandbox).await).await;
    knows(&router, &["10.250.1.1:9445"]).await;
    let missing = format!(
        "grant this process's account get, list and watch on endpointslices.discovery.k8s.io in namespace {}",
        stand.namespace.name()
    );
    logs(&router, &missing).await;

    let more = json!({"subsets": [{
        "addresses": [{"ip": "10.250.1.1"}, {"ip": "10.250.1.2"}], "notReadyAddresses": [{"ip": "10.250.1.3"}],
        "ports": [{"port": 80}],
    }]});
    let api = stand.namespace.api::<Endpoints>();
    api.patch("runners", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    knows(&router, &["10.250.1.1:9445", "10.250.1.2:9445"]).await;
    assert_eq!(router.log().matches(&missing).count(), 1);
    assert!(!router.log().contains("discovery fails"));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_right_that_is_missing_is_named_and_can_be_given_later() {
    let stand = Stand::new().await;
    stand.slice("one", "IPv4", &[("10.250.1.1", READY)]).await;
    let account = stand.namespace.account("router").await;
    let router = stand.router(&account.kubeconfig(&stand.sandbox).await).await;
    let missing = format!(
        "the API server forbids it: grant this process's account get, list and watch on endpointslices.discovery.k8s.io \
         in namespace {}",
        stand.namespace.name()
    );
    logs(&router, &missing).await;
    assert_eq!(router.page("/healthz").await.0, 200);
    assert_ne!(router.page("/readyz").await.0, 200, "there was no answer");
    account.allow(&stand.namespace, &[Stand::rights("discovery.k8s.io", "endpointslices")]).await;
    knows(&router, &["10.250.1.1:9445"]).await;
    assert_eq!(router.log().matches("discovery fails").count(), 1);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_service_that_does_not_exist_is_named() {
    let stand = Stand::new().await;
    let target = format!("--runners=kubernetes:///{}/runers:9445", stand.namespace.name());
    let kubeconfig = flag("kubeconfig", stand.cluster.kubeconfig());
    let router = stand.sandbox.server("porch-fn-router", [target.into(), kubeconfig]).await;
    let missing = format!(
        "there is no Service \"runers\" in namespace {:?}; create it or correct the target",
        stand.namespace.name()
    );
    logs(&router, &missing).await;
    ready(&router).await;
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
