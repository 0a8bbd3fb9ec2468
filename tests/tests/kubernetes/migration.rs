//! From Porch's function runner to this one and back without a failed call, by the very commands of the README's chapter.
//!
//! Porch's own program is not here. Its Deployment, Service, account and Role are, as its manifests have them, with our
//! program in the place of its own: so what is tried is the way, and not how Porch's program ends. That one breaks off
//! what it runs, so the test also takes the stand-in away in an instant, once Porch has dialled anew.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, ResourceExt};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{eventually, figure, get};
use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME, objects};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tonic::Code;

use super::calls::INPUT;
use super::deploy::{CALLERS, ROUTER, Stand};

const README: &str = include_str!("../../../README.md");
const CHAPTER: &str = "\n## Moving from Porch's function runner\n";
/// How often somebody dials anew.
const DIALS: Duration = Duration::from_millis(20);
/// Porch's runner, and its label.
const ORIGINAL: &str = "function-runner";
const ORIGINALS_PODS: &str = "app=function-runner";

/// The chapter's commands.
struct Commands {
    there: String,
    stop: String,
    clean: String,
    back: String,
}

/// Calls by a connection each, as Porch's when it has just been started: one that is refused is a failed call.
struct Diallers {
    stop: Arc<AtomicBool>,
    calls: JoinHandle<(usize, Vec<String>)>,
}

/// Those who keep their connections, and those who do not.
struct Callers {
    kept: Load,
    diallers: Diallers,
}

// === impl Commands ===

impl Commands {
    fn of_the_readme() -> Self {
        let (_, chapter) = README.split_once(CHAPTER).expect("the chapter is there");
        let (chapter, _) = chapter.split_once("\n## ").expect("another follows");
        let blocks =
            chapter.split("```sh\n").skip(1).map(|block| block.split_once("```").unwrap().0.to_owned());
        let [there, stop, clean, back] =
            blocks.collect::<Vec<_>>().try_into().expect("four blocks of commands");
        Self { there, stop, clean, back }
    }
}

// === impl Diallers ===

impl Diallers {
    fn start(address: SocketAddr, image: &str) -> Self {
        let (image, stop) = (image.to_owned(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let calls = async move {
            let (mut calls, mut failures) = (0, Vec::new());
            let mut ticks = interval(DIALS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                calls += 1;
                match Client::new(address).try_call(&image, INPUT, None).await {
                    Ok(answer) if answer.code == Code::Ok => {}
                    Ok(answer) => failures.push(format!("{:?}: {}", answer.code, answer.message)),
                    Err(error) => failures.push(error.to_string()),
                }
            }
            (calls, failures)
        };
        Self { stop, calls: tokio::spawn(calls) }
    }

    async fn all_succeeded(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let (calls, failures) = self.calls.await.unwrap();
        assert!(failures.is_empty(), "{} of {calls} dialled in vain: {failures:?}", failures.len());
        assert!(calls > 0);
        calls
    }
}

// === impl Callers ===

impl Callers {
    async fn start(stand: &Stand) -> Self {
        let address = stand.address().await;
        let plan = Plan::callers(CALLERS, &stand.images[..2]).longest(Duration::from_mins(10));
        let kept = Load::through(&Routers::new([address]), plan);
        Self { kept, diallers: Diallers::start(address, &stand.images[0]) }
    }

    async fn all_succeeded(self, what: &str) {
        let report = self.kept.stop().await;
        let dialled = self.diallers.all_succeeded().await;
        figure(&format!("{what}: {report}; {dialled} calls by connections of their own, 0 failed"));
        report.all_succeeded();
    }

    /// So many calls more.
    async fn go_on(&self) {
        let wanted = self.kept.answered() + 200;
        eventually("calls go on", async || (self.kept.answered() >= wanted).then_some(())).await;
    }
}

// === impl Stand ===

impl Stand {
    /// Porch, as far as it is needed: server-side, so that no `kubectl apply` has left its notes in the objects.
    async fn installs_porch(&self, how: &[&str]) {
        let porch = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/porch/1.6");
        let mut all = Vec::new();
        for file in ["1-namespace.yaml", "2-function-runner.yaml", "5-rbac.yaml", "6-rbac-bind.yaml"] {
            all.extend(objects(&porch.join(file)));
        }
        let ours = |object: &Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            ["porch-system", FUNCTIONS, "porch-fn-runner", ORIGINAL, "porch-function-executor"]
                .contains(&name)
        };
        all.retain(ours);
        assert_eq!(all.len(), 7, "{all:#?}");
        all.push(porch_server());
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string();
        let list = list
            .replace(
                "docker.io/nephio/porch-function-runner:latest",
                "porch-fn.example/function-runner:v0.1.0",
            )
            .replace(
                "docker.io/nephio/porch-wrapper-server:latest",
                "porch-fn.example/wrapper-server:v0.1.0",
            );
        assert!(!list.contains("docker.io"), "{list}");
        let file = self.sandbox.write("porch.json", list);
        self.kubectl(&[&["apply", "-f", file.to_str().unwrap()], how].concat()).await;
        self.rolled_out(&[ORIGINAL, "porch-server"]).await;
    }

    /// Commands of the README, at the root of the repository.
    async fn runs(&self, commands: &str) {
        let script = format!("set -euo pipefail\ncd {DEPLOY}/..\n{commands}");
        let mut command = self.sandbox.command("bash");
        command.args(["-c", &script]).env("KUBECONFIG", self.cluster.kubeconfig());
        let ended = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{commands}\n{said}");
        // It notes objects that others than `kubectl apply` have made, and pods of Porch's that are not restricted.
        let parts = ["last-applied-configuration annotation", "would violate PodSecurity"];
        let noted = |line: &&str| !parts.iter().any(|part| line.contains(part));
        assert_eq!(said.lines().filter(noted).collect::<Vec<_>>(), Vec::<&str>::new(), "{commands}");
    }

    /// What Porch's runner leaves: a pod and a Service with its names and labels.
    async fn legacy_pod(&self) -> Pod {
        let name = "function-0-v1-1-0123abcd";
        let labels = json!({"fn.kpt.dev/image": name});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": FUNCTIONS, "labels": labels,
                "annotations": {"fn.kpt.dev/template-version": "inline-v1"},
            },
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "function", "image": self.cluster.wrapper_image(),
                "command": ["/wrapper-server/wrapper-server", "--idle"],
            }]},
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": FUNCTIONS},
            "spec": {"selector": labels, "ports": [{"port": 9446, "targetPort": 9446}]},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, service]}).to_string();
        let file = self.sandbox.write("legacy.json", list);
        self.kubectl(&["create", "-f", file.to_str().unwrap()]).await;
        self.function_pods().get(name).await.unwrap()
    }

    fn function_pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), FUNCTIONS)
    }

    async fn selector(&self) -> Value {
        let text =
            self.kubectl(&["-n", HOME, "get", "service", ORIGINAL, "-o", "jsonpath={.spec.selector}"]).await;
        serde_json::from_str(&text).unwrap()
    }

    /// Calls that the pods of one label have answered.
    async fn answered_by(&self, label: &str, metric: &str) -> f64 {
        let ips = self
            .kubectl(&["-n", HOME, "get", "pods", "-l", label, "-o", "jsonpath={.items[*].status.podIP}"])
            .await;
        let mut sum = 0.0;
        for ip in ips.split_whitespace() {
            let (_, page) = get(SocketAddr::new(ip.parse().unwrap(), 9464), "/metrics").await;
            let lines = page.lines().filter(|line| line.starts_with(metric));
            sum += lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>();
        }
        sum
    }
}

/// Something to restart in the place of the caller.
fn porch_server() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "porch-server", "namespace": HOME},
        "spec": {
            "selector": {"matchLabels": {"app": "porch-server"}},
            "template": {
                "metadata": {"labels": {"app": "porch-server"}},
                "spec": {"containers": [{
                    "name": "idle", "image": "porch-fn.example/wrapper-server:v0.1.0",
                    "command": ["/wrapper-server/wrapper-server", "--idle"],
                }]},
            },
        },
    })
}

const BY_ORIGINAL: &str = "porch_fn_runner_calls_total";
const BY_ROUTERS: &str = "porch_fn_router_calls_total";
const ROUTERS: &str = "app.kubernetes.io/name=function-router";

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn porchs_runner_is_replaced_and_comes_back_without_a_failed_call() {
    let cluster = Cluster::connect().await;
    if cluster.own().is_none() {
        return;
    }
    let commands = Commands::of_the_readme();
    let stand = Stand::new(cluster).await;
    stand.installs_porch(&["--server-side", "--field-manager=kpt"]).await;
    stand.serves(&stand.images[..2]).await;
    let legacy = stand.legacy_pod().await;
    // Why the Service is switched by itself.
    let (deploy, jsonpath) =
        (DEPLOY, "jsonpath={.items[?(@.metadata.name==\"function-runner\")].spec.selector}");
    let merged = stand.run(&["apply", "--dry-run=server", "-k", deploy, "-o", jsonpath]).await.stdout;
    let both = json!({"app": ORIGINAL, "app.kubernetes.io/name": ROUTER});
    assert_eq!(serde_json::from_slice::<Value>(&merged).unwrap(), both);

    // There. Whoever has a connection stays with Porch's runner.
    let callers = Callers::start(&stand).await;
    callers.go_on().await;
    stand.runs(&commands.there).await;
    assert_eq!(stand.selector().await, json!({"app.kubernetes.io/name": ROUTER}));
    let before = stand.answered_by(ORIGINALS_PODS, BY_ORIGINAL).await;
    callers.go_on().await;
    assert!(stand.answered_by(ORIGINALS_PODS, BY_ORIGINAL).await >= before + 100.0, "connections stay");
    assert!(stand.answered_by(ROUTERS, BY_ROUTERS).await > 0.0, "new ones do not");
    // Without Porch's being restarted: the stand-in finishes what it has.
    stand.runs(&commands.stop).await;
    gone(&stand, ORIGINALS_PODS).await;
    callers.go_on().await;
    callers.all_succeeded("there").await;

    // What Porch's runner has left was not touched.
    let there = stand.function_pods().get(&legacy.name_any()).await.unwrap();
    assert_eq!(
        (there.uid(), there.labels(), there.annotations()),
        (legacy.uid(), legacy.labels(), legacy.annotations())
    );
    assert_eq!(there.metadata.deletion_timestamp, None);
    let callers = Callers::start(&stand).await;
    stand.runs(&commands.clean).await;
    let services: Api<Service> = Api::namespaced(stand.cluster.client(), FUNCTIONS);
    assert!(stand.function_pods().get_opt(&legacy.name_any()).await.unwrap().is_none());
    assert!(services.get_opt(&legacy.name_any()).await.unwrap().is_none());
    callers.all_succeeded("the legacy pods deleted").await;

    // And back.
    let callers = Callers::start(&stand).await;
    callers.go_on().await;
    stand.runs(&commands.back).await;
    assert_eq!(stand.selector().await, json!({"app": ORIGINAL}));
    callers.go_on().await;
    callers.all_succeeded("back").await;
    let left = stand.kubectl(&["-n", HOME, "get", "deployments", "-o", "name"]).await;
    assert_eq!(left.trim(), "deployment.apps/function-runner\ndeployment.apps/porch-server");

    // There again, from a runner that ends as Porch's own does: those who have dialled anew do not notice.
    let callers = Callers::start(&stand).await;
    callers.go_on().await;
    stand.runs(&commands.there).await;
    let after = Callers::start(&stand).await;
    callers.all_succeeded("there again, until Porch is restarted").await;
    let force = ["-n", HOME, "delete", "pod", "-l", ORIGINALS_PODS, "--grace-period=0", "--force"];
    stand.kubectl(&["-n", HOME, "scale", "deployment", ORIGINAL, "--replicas=0"]).await;
    stand.run(&force).await;
    gone(&stand, ORIGINALS_PODS).await;
    after.go_on().await;
    after.all_succeeded("Porch's runner is killed").await;
    stand.removes_all().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_single_runner_takes_the_place_of_porchs_and_gives_it_back() {
    let cluster = Cluster::connect().await;
    if cluster.own().is_none() {
        return;
    }
    let stand = Stand::new(cluster).await;
    stand.installs_porch(&[]).await;
    stand.serves(&stand.images[..2]).await;
    let callers = Callers::start(&stand).await;
    callers.go_on().await;
    let single = format!("kubectl apply -k {DEPLOY}/single-runner");
    stand.runs(&single).await;
    stand.rolled_out(&[ORIGINAL]).await;
    callers.go_on().await;
    callers.all_succeeded("a single runner in place").await;

    let callers = Callers::start(&stand).await;
    callers.go_on().await;
    stand.installs_porch(&[]).await;
    callers.go_on().await;
    callers.all_succeeded("and back").await;
    stand.removes_all().await;
}

async fn gone(stand: &Stand, label: &str) {
    stand.kubectl(&["-n", HOME, "wait", "pod", "-l", label, "--for=delete", "--timeout=5m"]).await;
}
