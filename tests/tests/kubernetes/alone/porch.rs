//! Installs Porch in the test cluster from the manifests of each version. The stand-in from
//! `tests/clients/go/cmd/porch` replaces Porch's programs. It makes calls and shuts down like these
//! programs, and reports the results of its calls to the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use porch_fn_tests::process::{eventually, figure};
use porch_fn_tests::rights::{FUNCTIONS, HOME, objects};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::deploy::DeploySetup;

/// A version of Porch. Each has a folder of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1_5,
    V1_6,
    Next,
}

/// An installation of Porch whose programs make calls.
pub(crate) struct Porch {
    version: Version,
    reports: Reports,
}

/// The last report of each stand-in, by pod.
#[derive(Debug, Clone, Default)]
struct Reports(Arc<Mutex<BTreeMap<String, Report>>>);

/// The results of a pod's calls so far.
#[derive(Debug, Clone, Deserialize)]
struct Report {
    program: String,
    pod: String,
    calls: BTreeMap<String, usize>,
    failed: usize,
    texts: Option<Vec<String>>,
    slowest_seconds: f64,
    done: bool,
    #[serde(skip)]
    lost: bool,
}

// === impl Version ===

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::V1_5 => "1.5",
            Self::V1_6 => "1.6",
            Self::Next => "next",
        }
    }

    pub(crate) fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/porch").join(self.name())
    }

    /// The unchanged objects of the version's manifests, except those of Porch's own API and
    /// database.
    pub(crate) fn objects(self) -> Vec<Value> {
        let files = ["2-function-runner", "3-porch-server", "5-rbac", "6-rbac-bind", "9-controllers"];
        let file = |name| self.folder().join(name).with_extension("yaml");
        let mut all: Vec<_> = files.into_iter().flat_map(|name| objects(&file(name))).collect();
        all.retain(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            match object["kind"].as_str().unwrap_or_default() {
                "Role" | "RoleBinding" => ["porch-function-executor", "porch-fn-runner"].contains(&name),
                kind => !kind.starts_with("ClusterRole"),
            }
        });
        all
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Porch {}", self.name())
    }
}

// === impl Porch ===

impl Porch {
    /// Installs Porch, and waits until it is ready. Porch's programs call the functions `images`.
    pub(crate) async fn install(setup: &DeploySetup, version: Version, images: &[String]) -> Self {
        let node = setup.cluster.registry().split(':').next().unwrap();
        let listener = TcpListener::bind((node, 0)).await.unwrap();
        let report_to = listener.local_addr().unwrap().to_string();
        let reports = Reports::default();
        tokio::spawn(reports.clone().collect(listener));

        let crd = version.folder().join("crds/config.porch.kpt.dev_functionconfigs.yaml");
        if crd.is_file() {
            setup.apply_crds(&crd).await;
        }
        let mut all = version.objects();
        // Porch's Deployments mount these objects, which belong to parts of Porch that are not
        // installed.
        for (kind, name) in [
            ("ConfigMap", "porch-db-config"),
            ("Secret", "porch-db-secret"),
            ("Secret", "porch-controllers-webhook-tls"),
        ] {
            let metadata = json!({"name": name, "namespace": HOME});
            all.push(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}));
        }
        for object in all.iter_mut().filter(|object| object["kind"] == "Deployment") {
            let image = format!("{}/porch:test", setup.cluster.registry());
            use_stand_in(object, &image, images, &report_to);
        }
        // Servers are installed before their callers, so that the first calls do not fail.
        let (controllers, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|object| object["metadata"]["name"] == "porch-controllers");
        let (server, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|object| {
            object["kind"] == "Deployment" && object["metadata"]["name"] == "porch-server"
        });
        for (part, deployment, service, port) in [
            (rest, "function-runner", "function-runner", 9445),
            (server, "porch-server", "api", if version == Version::Next { 9447 } else { 443 }),
            (controllers, "porch-controllers", "function-runner", 9445),
        ] {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": part}).to_string();
            let file = setup.sandbox.write("porch.json", list);
            let file = file.to_str().unwrap();
            setup.kubectl(&["apply", "--server-side", "--field-manager=kpt", "-f", file]).await;
            setup.rolled_out(&[deployment]).await;
            setup.wait_reachable(service, port).await;
        }
        Self { version, reports }
    }

    /// Waits until each program calls exactly these addresses for a whole second.
    pub(crate) async fn wait_calls_to(&self, wanted: &[(&str, &[&str])]) {
        let mut expected = BTreeSet::new();
        for (program, targets) in wanted {
            expected.extend(targets.iter().map(|target| ((*program).to_owned(), (*target).to_owned())));
        }
        eventually(&format!("{}: calls go to {expected:?}", self.version), async || {
            let before = self.reports.counts();
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let after = self.reports.counts();
            let mut called: BTreeSet<_> = after.keys().cloned().collect();
            called.retain(|key| after[key] > before.get(key).copied().unwrap_or_default() + 5);
            (called == expected).then_some(())
        })
        .await;
    }

    /// Asserts that no call has failed so far, and that no pod was killed before its calls ended.
    pub(crate) fn assert_nothing_failed(&self, what: &str) {
        let reports = self.reports.all();
        let calls: usize = reports.iter().flat_map(|report| report.calls.values()).sum();
        let failed: usize = reports.iter().map(|report| report.failed).sum();
        let slowest = reports.iter().map(|report| report.slowest_seconds).fold(0.0, f64::max);
        figure(&format!(
            "{}, {what}: {failed} of {calls} calls failed, slowest {slowest:.1} s",
            self.version
        ));
        let texts: Vec<_> = reports.iter().flat_map(|report| report.texts.iter().flatten()).collect();
        assert_eq!(failed, 0, "{}, {what}: {texts:#?}", self.version);
        let lost: Vec<_> = reports.iter().filter(|report| report.lost).collect();
        assert!(lost.is_empty(), "{}, {what}: killed before their calls ended: {lost:#?}", self.version);
        assert!(calls > 100, "only {calls} calls");
    }
}

// === impl Reports ===

impl Reports {
    async fn collect(self, listener: TcpListener) {
        let mut pods = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let reports = self.clone();
            pods.spawn(async move {
                let mut lines = BufReader::new(stream).lines();
                let mut last: Option<String> = None;
                while let Ok(Some(line)) = lines.next_line().await {
                    let report: Report = serde_json::from_str(&line).unwrap();
                    last = Some(report.pod.clone());
                    reports.0.lock().unwrap().insert(report.pod.clone(), report);
                }
                // A pod that was killed before `done` has not reported its last calls.
                if let Some(pod) = last
                    && let Some(report) = reports.0.lock().unwrap().get_mut(&pod)
                {
                    report.lost = !report.done;
                }
            });
        }
    }

    fn all(&self) -> Vec<Report> {
        self.0.lock().unwrap().values().cloned().collect()
    }

    /// The number of calls by program and address.
    fn counts(&self) -> BTreeMap<(String, String), usize> {
        let mut counts = BTreeMap::new();
        for report in self.all() {
            for (target, calls) in report.calls {
                *counts.entry((report.program.clone(), target)).or_default() += calls;
            }
        }
        counts
    }
}

/// Replaces the program in one of Porch's Deployments. Flags, variables and probes are kept.
fn use_stand_in(deployment: &mut Value, image: &str, images: &[String], report_to: &str) {
    let is_controllers = deployment["metadata"]["name"] == "porch-controllers";
    if is_controllers {
        deployment["spec"]["replicas"] = json!(3);
    }
    let pod = &mut deployment["spec"]["template"]["spec"];
    // The stand-in makes calls for 30 s after SIGTERM.
    pod["terminationGracePeriodSeconds"] = json!(60);
    let container = &mut pod["containers"][0];
    container["image"] = json!(image);
    // The node is small, and the stand-in needs few resources.
    container.as_object_mut().unwrap().remove("resources");
    // Porch's controllers render 20 packages at once.
    let (renders, pause) = if is_controllers { ("20", "1s") } else { ("4", "100ms") };
    let variables = container["env"].as_array_mut().unwrap();
    for (name, value) in
        [("IMAGES", &*images.join(",")), ("RENDERS", renders), ("PAUSE", pause), ("REPORT_TO", report_to)]
    {
        variables.push(json!({"name": name, "value": value}));
    }
}

/// A FunctionConfig of a function that runs in pods.
pub(crate) fn function_config(name: &str, prefix: &str) -> Value {
    json!({
        "apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "FunctionConfig",
        "metadata": {"name": name, "namespace": FUNCTIONS},
        "spec": {"image": name, "prefixes": [prefix], "podExecutor": {"tags": ["*"]}},
    })
}
