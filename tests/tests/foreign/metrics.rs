//! A real Prometheus scrapes a router and two runners under traffic, and every query of the dashboard and the alerts gets an
//! answer: a metric that is renamed, or a query that is misspelt, shows here.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag, get};
use serde_json::Value;
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

const INPUT: &str = "kind: ResourceList\n";
/// Enough of them that some belong to a runner that is not there.
const GOOD: usize = 12;
/// Its pods do not start.
const BROKEN: &str = "example.com/f/broken:v1";
/// It takes its pod with it.
const DEADLY: &str = "example.com/f/deadly:v1";
const FAILING: &str = "example.com/f/failing:v1";
const SLOW: &str = "example.com/f/slow:v1";
const LOCAL: &str = "example.com/f/local:v1";

/// The programs of Debian's package, unless they are to be skipped.
///
/// # Panics
/// When there are none, and nobody said so.
fn prometheus() -> Option<[PathBuf; 2]> {
    let skipped = std::env::var("PORCH_FN_TEST_SKIP").unwrap_or_default();
    if skipped.split_whitespace().any(|skipped| skipped == "prometheus") {
        eprintln!("skipped: there is no prometheus on this machine");
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    Some(["prometheus", "promtool"].map(|name| {
        let found =
            std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
        found.unwrap_or_else(|| panic!("{name} is missing: tests/run installs it"))
    }))
}

fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path).canonicalize().unwrap()
}

async fn start_runners(sandbox: &Sandbox) -> Vec<Server> {
    let exec_folder = sandbox.script("exec/local", "exec cat").parent().unwrap().to_owned();
    let exec = sandbox.write("exec.yaml", format!("functions: [{{function: local, images: ['{LOCAL}']}}]"));
    // Pods of one function die before they serve.
    let wrapper =
        format!("case \"$*\" in *broken*) exit 3;; esac; exec {} \"$@\"", binary("wrapper-server").display());
    let wrapper = sandbox.script("wrapper", &wrapper);
    let mut functions = vec![
        (BROKEN.to_owned(), sandbox.script("broken", "exec cat")),
        (DEADLY.to_owned(), sandbox.script("deadly", "kill -9 $PPID; sleep 1")),
        (FAILING.to_owned(), sandbox.script("failing", "echo no >&2; exit 1")),
        (SLOW.to_owned(), sandbox.script("slow", "sleep 0.3; exec cat")),
    ];
    let good = sandbox.script("good", "exec cat");
    functions.extend((0..GOOD).map(|number| (good_image(number), good.clone())));
    let lines = functions
        .iter()
        .map(|(image, path)| format!("- {{image: '{image}', command: ['{}']}}\n", path.display()));
    let local = sandbox.write("pods.yaml", format!("functions:\n{}", lines.collect::<String>()));
    let mut runners = Vec::new();
    for _ in 0..2 {
        let args = [
            "--pod-backend=local".into(),
            flag("local-functions", &local),
            flag("wrapper-server", &wrapper),
            flag("functions", &exec_folder),
            flag("config", &exec),
            "--max-concurrent-per-pod=1".into(),
            "--max-queue-per-function=2".into(),
        ];
        runners.push(sandbox.server("porch-fn-runner", args).await);
    }
    runners
}

fn good_image(number: usize) -> String {
    format!("example.com/f/good{number}:v1")
}

/// Calls of every kind, over and over.
fn traffic(router: SocketAddr) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    let mut images: Vec<_> = (0..GOOD).map(good_image).collect();
    images.extend([BROKEN, DEADLY, FAILING, LOCAL].map(str::to_owned));
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

async fn start_prometheus(
    sandbox: &Sandbox,
    program: &Path,
    router: &Server,
    runners: &[Server],
) -> (Child, SocketAddr) {
    let job = |name: &str, servers: &[&Server]| {
        let targets: Vec<_> = servers.iter().map(|server| format!("'{}'", server.admin())).collect();
        format!(
            "- job_name: {name}\n  static_configs: [{{targets: [{}], labels: {{namespace: porch-system}}}}]\n",
            targets.join(", ")
        )
    };
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n{}{}",
        deployed("alerts/porch-functions.rules.yaml").display(),
        job("function-router", &[router]),
        job("function-runner-shards", &runners.iter().collect::<Vec<_>>()),
    );
    let config = sandbox.write("prometheus.yaml", config);
    // It does not say which port it took, if it may take any.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
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

async fn ask(prometheus: SocketAddr, path: &str) -> Value {
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

/// What the dashboard asks, with its variables as Grafana puts them in.
fn dashboard_queries() -> Vec<String> {
    let text = std::fs::read_to_string(deployed("dashboard/porch-functions.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 38);
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "panels have ids of their own");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
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

/// The names of our metrics in an expression.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("porch_fn_"))
}

#[tokio::test]
#[ignore = "needs the built binaries and prometheus; tests/run runs it"]
async fn every_query_of_dashboard_and_alerts_is_answered() {
    let Some([prometheus, promtool]) = prometheus() else { return };
    let sandbox = Sandbox::new();
    let rules = deployed("alerts/porch-functions.rules.yaml");
    let checked = sandbox.run(promtool, [Path::new("check"), Path::new("rules"), rules.as_path()], b"").await;
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    let runners = start_runners(&sandbox).await;
    // A third one is not there: its images go elsewhere.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut addresses: Vec<_> = runners.iter().map(|runner| runner.address().to_string()).collect();
    addresses.push(gone.to_string());
    let router = [flag("runners", format!("static:///{}", addresses.join(",")))];
    let router = sandbox.server_with("porch-fn-router", router, |command| {
        command.env("OTEL_SERVICE_NAME", "porch-function-runner");
    });
    let router = router.await;
    let _callers = traffic(router.address());
    let (_prometheus, address) = start_prometheus(&sandbox, &prometheus, &router, &runners).await;

    let queries = dashboard_queries();
    for expression in &queries {
        let path = query(expression);
        eventually(&format!("data for {expression}"), async || {
            let data = ask(address, &path).await;
            (!data["result"].as_array().unwrap().is_empty()).then_some(())
        })
        .await;
    }

    // Alerts are not to fire, so that they have no data: their metrics have.
    let rules = eventually("all rules are evaluated", async || {
        let data = ask(address, "/api/v1/rules").await;
        let groups = data["groups"].as_array().unwrap().iter();
        let rules: Vec<_> = groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        (!rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")).then_some(rules)
    })
    .await;
    let names = ask(address, "/api/v1/label/__name__/values").await;
    let names: BTreeSet<_> = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut used = 0;
    for rule in &rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&Value::from("ok"), &Value::Null), "{rule}");
        for part in ["summary", "description"] {
            assert!(rule["annotations"][part].as_str().is_some_and(|text| !text.is_empty()), "{rule}");
        }
        assert!(
            ["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{rule}"
        );
        let expression = rule["query"].as_str().unwrap();
        for metric in metrics(expression) {
            assert!(names.contains(metric), "{metric} of {} is not there", rule["name"]);
            used += 1;
        }
    }
    assert!(used >= rules.len(), "each alert has a metric of ours");

    let service = ask(address, &query("target_info{service_name=\"porch-function-runner\"}")).await;
    assert_eq!(service["result"][0]["metric"]["job"], "function-router", "{service}");
    figure(&format!("metrics: {} queries answered, {} alerts evaluated", queries.len(), rules.len()));
}
