//! A real Prometheus scrapes a router and two runners under load. Every query of the dashboard and
//! the alerts must have data. promtool tests the alerts; the series of its test cases must have the
//! names and labels that the programs export.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use porch_fn_tests::client::Client;
use porch_fn_tests::foreign::installed;
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag, get, runners_flag};
use porch_fn_tests::registry::Authority;
use porch_fn_tests::rights::{list, manifest, objects, words};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::INPUT;

const RULES: &str = "alerts/porch-functions.rules.yaml";
/// The test cases of the alerts.
const CASES: &str = "alerts/porch-functions.tests.yaml";
/// The number of working functions. It is so large that each of the three runners owns some, also
/// the runner that is listed but does not exist.
const GOOD: usize = 12;
const DOES_NOT_START: &str = "example.com/f/does-not-start:v1";
const KILLS_ITS_POD: &str = "example.com/f/kills-its-pod:v1";
const FAILING: &str = "example.com/f/failing:v1";
const SLOW: &str = "example.com/f/slow:v1";
const LOCAL: &str = "example.com/f/local:v1";
/// The DNS name in the runners' certificate.
const NAME: &str = "runners.test.svc";

/// The programs of Debian's Prometheus package.
fn prometheus() -> [PathBuf; 2] {
    ["prometheus", "promtool"].map(|name| installed(&[name]))
}

fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path).canonicalize().unwrap()
}

async fn start_runners(sandbox: &Sandbox) -> Vec<Server> {
    // The pods of the first function exit before they serve.
    let wrapper = format!(
        "case \"$*\" in */pods/f0) exit 3;; esac; exec {} \"$@\"",
        binary("wrapper-server").display()
    );
    let images: Vec<_> = (0..GOOD).map(good_image).collect();
    let mut functions = vec![
        (DOES_NOT_START, "exec cat"),
        (KILLS_ITS_POD, "kill -9 $PPID; sleep 1"),
        (FAILING, "echo no >&2; exit 1"),
        (SLOW, "sleep 0.3; exec cat"),
    ];
    functions.extend(images.iter().map(|image| (image.as_str(), "exec cat")));
    let mut flags = sandbox.local_pods(&functions);
    flags.extend(sandbox.executables(&[(LOCAL, "exec cat")]));
    flags.push(flag("wrapper-server", sandbox.script("wrapper", &wrapper)));
    flags.extend(["--max-concurrent-per-pod=1".into(), "--max-queue-per-function=2".into()]);
    flags.push("--metrics-per-function=5".into());
    flags.extend(sandbox.tls_flags("tls", "runner", "authority"));
    vec![sandbox.runner(&flags).await, sandbox.runner(&flags).await]
}

fn good_image(number: usize) -> String {
    format!("example.com/f/good{number}:v1")
}

/// Makes calls of every kind until the result is dropped.
fn traffic(router: SocketAddr) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    let mut images: Vec<_> = (0..GOOD).map(good_image).collect();
    images.extend([DOES_NOT_START, KILLS_ITS_POD, FAILING, LOCAL].map(str::to_owned));
    images.extend(std::iter::repeat_n(SLOW.to_owned(), 12));
    for image in images {
        let client = Client::new(router);
        callers.spawn(async move {
            loop {
                let _ = client.try_call(&image, INPUT, Some(Duration::from_secs(20))).await;
                sleep(Duration::from_millis(50)).await;
            }
        });
    }
    callers
}

async fn promtool(sandbox: &Sandbox, promtool: &Path, args: [&str; 2], file: &Path) {
    let checked = sandbox.run(promtool, args.map(Path::new).into_iter().chain([file]), b"").await;
    let output = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{args:?} {}: {}", file.display(), String::from_utf8_lossy(&output));
}

/// The targets that Prometheus' Kubernetes discovery would find: one for each port of a pod from
/// the manifests.
fn targets(pod: &str, deployment: &str, server: &Server) -> Vec<Value> {
    let objects = objects(&deployed(deployment));
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let template = &deployment["spec"]["template"];
    // Prometheus gives missing labels and unnamed ports an empty value.
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let label = |name| text(&template["metadata"]["labels"][name]);
    let ports = list(&template["spec"]["containers"][0]["ports"]).map(|port| {
        let address = if port["containerPort"] == 9464 { server.admin() } else { server.address() };
        json!({"targets": [address], "labels": {
            "__meta_kubernetes_namespace": deployment["metadata"]["namespace"],
            "__meta_kubernetes_pod_name": pod,
            "__meta_kubernetes_pod_label_app": label("app"),
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": label("app.kubernetes.io/name"),
            "__meta_kubernetes_pod_container_port_name": text(&port["name"]),
            "__meta_kubernetes_pod_phase": "Running",
        }})
    });
    let ports: Vec<_> = ports.collect();
    assert_eq!(ports.len(), 2, "{deployment}");
    ports
}

/// The configuration in deploy/ with fixed targets, because Debian's Prometheus has no Kubernetes
/// discovery. The last runner has the labels of the single runner.
fn scrape_config(router: &Server, runners: &[Server]) -> Value {
    let [shard, single] = runners else { panic!("two runners") };
    let pods = [
        ("router-0", "router.yaml", router),
        ("runner-0", "runners.yaml", shard),
        ("runner-1", "single-runner/runner.yaml", single),
    ];
    let ports = pods.into_iter().flat_map(|(name, file, server)| targets(name, file, server));
    let mut config = manifest("alerts/prometheus.yaml");
    config["global"] = json!({"scrape_interval": "1s", "evaluation_interval": "1s"});
    config["rule_files"] = json!([deployed(RULES)]);
    let scrape = config["scrape_configs"][0].as_object_mut().unwrap();
    assert!(scrape.remove("kubernetes_sd_configs").is_some());
    scrape.remove("scrape_interval");
    scrape.insert("static_configs".to_owned(), ports.collect());
    config
}

async fn start_prometheus(sandbox: &Sandbox, program: &Path, config: &Path) -> (Child, SocketAddr) {
    // Prometheus does not print its port if it chooses one itself. So the test chooses a port, on
    // an address that no other process uses.
    let address = TcpListener::bind("127.10.0.1:0").unwrap().local_addr().unwrap();
    let mut command = sandbox.command(program);
    command.args([
        flag("config.file", config),
        flag("storage.tsdb.path", sandbox.path("tsdb")),
        flag("web.listen-address", address.to_string()),
        "--log.level=error".into(),
    ]);
    let mut child = command.spawn().unwrap();
    eventually("Prometheus is ready", async || {
        assert!(child.try_wait().unwrap().is_none(), "Prometheus has ended");
        tokio::net::TcpStream::connect(address).await.ok()?;
        (get(address, "/-/ready").await.0 == 200).then_some(())
    })
    .await;
    (child, address)
}

async fn get_data(prometheus: SocketAddr, path: &str) -> Value {
    let (_, text) = get(prometheus, path).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["status"], "success", "{path}: {text}");
    answer["data"].clone()
}

fn query(expression: &str) -> String {
    let mut encoded = String::new();
    for byte in expression.bytes() {
        write!(encoded, "%{byte:02X}").unwrap();
    }
    format!("/api/v1/query?query={encoded}")
}

/// The dashboard's queries, with their variables replaced as in Grafana.
fn dashboard_queries() -> Vec<String> {
    let text = std::fs::read_to_string(deployed("dashboard/porch-functions.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 38);
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "panels have ids of their own");
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let queries: Vec<_> = targets
        .map(|target| {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            let query = target["expr"].as_str().unwrap();
            let query =
                query.replace("$__rate_interval", "10s").replace("$job", ".*").replace("$namespace", ".*");
            assert!(!query.contains('$'), "a variable that this test does not know: {query}");
            query
        })
        .collect();
    assert!(queries.len() > 40, "{} queries", queries.len());
    queries
}

/// Converts a series of a test case to a selector without `namespace` and `instance`, because their
/// values differ here. Also returns the names of the remaining labels.
fn selector(series: &str) -> (String, BTreeSet<String>) {
    let (metric, labels) = series.strip_suffix('}').unwrap().split_once('{').unwrap();
    let of_pod = |label: &&str| !label.starts_with("namespace=") && !label.starts_with("instance=");
    let labels: Vec<_> = labels.split(", ").filter(of_pod).collect();
    let names = labels.iter().map(|label| label.split_once('=').unwrap().0.to_owned()).collect();
    (format!("{metric}{{{}}}", labels.join(", ")), names)
}

/// Asserts that the programs export all series of the test cases, with exactly these labels.
async fn assert_series_of_cases_are_exported(prometheus: SocketAddr) -> usize {
    let cases = manifest(CASES);
    let series = list(&cases["tests"]).flat_map(|case| list(&case["input_series"]));
    let series = series.map(|series| series["series"].as_str().unwrap());
    // The other series come from kube-state-metrics, which does not run here.
    let series = series.filter(|series| series.starts_with("porch_fn_"));
    let series: BTreeSet<_> = series.map(selector).collect();
    for (selector, names) in &series {
        let path = query(selector);
        let found = eventually(&format!("a program exports {selector}"), async || {
            get_data(prometheus, &path).await["result"].as_array().unwrap().first().cloned()
        })
        .await;
        let mut labels: BTreeSet<_> = found["metric"].as_object().unwrap().keys().cloned().collect();
        for of_pod in ["__name__", "instance", "job", "namespace", "pod"] {
            assert!(labels.remove(of_pod), "{of_pod} of {found}");
        }
        assert_eq!(&labels, names, "{selector}");
    }
    series.len()
}

#[tokio::test]
#[ignore = "needs prometheus; tests/run runs it"]
async fn each_alert_fires_only_when_it_should() {
    let [_, program] = prometheus();
    promtool(&Sandbox::new(), &program, ["test", "rules"], &deployed(CASES)).await;
}

#[tokio::test]
#[ignore = "needs the built binaries and prometheus; tests/run runs it"]
async fn every_query_of_dashboard_and_alerts_has_data() {
    let [prometheus, program] = prometheus();
    let sandbox = Sandbox::new();
    let authority = Authority::create(&sandbox, "authority").await;
    for name in ["runner", "router"] {
        authority.issue(&sandbox, name, &format!("DNS:{NAME}"), 30).await;
    }
    let runners = start_runners(&sandbox).await;
    // A third runner does not exist: its images go to the other two.
    let missing = "127.0.0.1:1".parse().unwrap();
    let target = runners_flag(runners.iter().map(Server::address).chain([missing]));
    let router = [target.into(), flag("tls-server-name", NAME), "--metrics-per-function=5".into()];
    let router = router.into_iter().chain(sandbox.tls_flags("tls", "router", "authority"));
    let router = sandbox.server_with("porch-fn-router", router, |command| {
        command.env("OTEL_SERVICE_NAME", "porch-function-runner");
    });
    let router = router.await;
    let _callers = traffic(router.address());
    let config = sandbox.write("prometheus.yaml", scrape_config(&router, &runners).to_string());
    promtool(&sandbox, &program, ["check", "config"], &config).await;
    let (_prometheus, address) = start_prometheus(&sandbox, &prometheus, &config).await;

    let queries = dashboard_queries();
    for expression in &queries {
        let path = query(expression);
        eventually(&format!("data for {expression}"), async || {
            let data = get_data(address, &path).await;
            (!data["result"].as_array().unwrap().is_empty()).then_some(())
        })
        .await;
    }

    // The alerts' queries have no result while no alert fires. So the test checks that their
    // metrics have data.
    let rules = eventually("all rules are evaluated", async || {
        let data = get_data(address, "/api/v1/rules").await;
        let groups = data["groups"].as_array().unwrap().iter();
        let rules: Vec<_> = groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        (!rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")).then_some(rules)
    })
    .await;
    let names = get_data(address, "/api/v1/label/__name__/values").await;
    let names: BTreeSet<_> = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut used = 0;
    let alerts = rules.iter().filter(|rule| rule["type"] == "alerting").count();
    for rule in &rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&Value::from("ok"), &Value::Null), "{rule}");
        let expression = rule["query"].as_str().unwrap();
        for metric in words(expression, "porch_fn_") {
            assert!(names.contains(metric), "{metric} of {} is not there", rule["name"]);
            used += 1;
        }
    }
    assert!(used >= alerts, "most alerts have a metric of ours");

    let cases = assert_series_of_cases_are_exported(address).await;
    // Prometheus scrapes one port of each pod. The jobs have the names that the operator gives them
    // for the PodMonitors.
    let targets = get_data(address, "/api/v1/targets?state=active").await;
    let mut jobs: Vec<_> =
        list(&targets["activeTargets"]).map(|target| target["labels"]["job"].as_str().unwrap()).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, ["function-router", "function-runner", "function-runner-shards"]);
    let service = get_data(address, &query("target_info{service_name=\"porch-function-runner\"}")).await;
    assert_eq!(service["result"][0]["metric"]["job"], "function-router", "{service}");
    figure(&format!(
        "metrics: {} queries have data, {alerts} alerts are evaluated, {cases} series of test cases are exported",
        queries.len()
    ));
}
