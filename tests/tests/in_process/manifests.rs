//! Asserts that duplicated facts in deploy/ are equal. The alerts exist twice, for Prometheus and
//! for its operator, because kustomize cannot include one file in the other. The alerts' tests, the
//! dashboard, scrape configurations and docs/ repeat names of alerts, metrics and labels. kpt and
//! kustomize list the same objects. `foreign::metrics` tests the alerts with Prometheus.

mod routers;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME, list, manifest, objects, words};
use serde_json::{Value, json};

const RULES: &str = "alerts/porch-functions.rules.yaml";
const OPERATORS_RULES: &str = "components/prometheus-operator/rules.yaml";
/// The URL of the runbooks in the manifests. Users replace it by the URL of their own copy.
const RUNBOOKS: &str = "https://porch-fn.example/docs/troubleshooting.md";
/// The metric that records the alerts' thresholds.
const THRESHOLD: &str = "porch_fn:alert_threshold";
const TROUBLESHOOTING: &str = include_str!("../../../docs/troubleshooting.md");
/// The pages in which a reader of an alert looks up a flag.
const PAGES: [&str; 4] = [
    TROUBLESHOOTING,
    include_str!("../../../docs/functions.md"),
    include_str!("../../../docs/operate.md"),
    include_str!("../../../docs/security.md"),
];

fn text(path: &str) -> String {
    let path = Path::new(DEPLOY).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rules(groups: &Value) -> impl Iterator<Item = &Value> {
    list(groups).flat_map(|group| list(&group["rules"]))
}

/// The alerting rules, without the rules that record thresholds.
fn alerts(groups: &Value) -> impl Iterator<Item = &Value> {
    rules(groups).filter(|rule| rule["record"].is_null())
}

/// The value of a label in a selector, `name{label="value"}`.
fn label<'a>(series: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = series.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0)
}

/// The Deployments of routers, runners and the single runner.
fn deployments() -> Vec<Value> {
    let files = ["router.yaml", "runners.yaml", "single-runner/runner.yaml"];
    let all = files.iter().flat_map(|file| objects(&Path::new(DEPLOY).join(file)));
    all.filter(|object| object["kind"] == "Deployment").collect()
}

/// The number of bytes of a quantity in Mi or Gi.
fn bytes(quantity: &Value) -> u64 {
    let text = quantity.as_str().unwrap();
    let (number, unit) = match text.strip_suffix("Gi") {
        Some(number) => (number, 1 << 30),
        None => (text.strip_suffix("Mi").unwrap_or_else(|| panic!("{text}")), 1 << 20),
    };
    number.parse::<u64>().unwrap() * unit
}

/// Returns the value of the pods' label `by`, from which Prometheus makes the job, and the name of
/// the pods' metrics port.
fn shown_by<'a>(deployment: &'a Value, by: &str) -> (&'a str, &'a str) {
    let pod = &deployment["spec"]["template"];
    let port = list(&pod["spec"]["containers"][0]["ports"]).find(|port| port["containerPort"] == 9464);
    (pod["metadata"]["labels"][by].as_str().unwrap(), port.unwrap()["name"].as_str().unwrap())
}

/// The specs of two `PodMonitors`: for routers and runners, and for the single runner.
fn pod_monitors() -> [Value; 2] {
    let mut monitors = objects(&Path::new(DEPLOY).join("components/prometheus-operator/monitors.yaml"));
    assert!(monitors.iter().all(|monitor| monitor["kind"] == "PodMonitor"));
    let names: BTreeSet<_> = monitors.iter().map(|monitor| monitor["metadata"]["name"].to_string()).collect();
    assert_eq!(names.len(), monitors.len(), "{names:?}");
    monitors.iter_mut().map(|monitor| monitor["spec"].take()).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn the_operators_alerts_are_those_of_the_rule_file() {
    let file = manifest(RULES);
    let object = manifest(OPERATORS_RULES);
    assert_eq!(object["kind"], "PrometheusRule");
    let names = |groups: &Value| -> Vec<String> {
        alerts(groups).map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect()
    };
    let (groups, copied) = (&file["groups"], &object["spec"]["groups"]);
    // Compare the names first: a difference is then easy to see.
    assert_eq!(names(copied), names(groups));
    assert_eq!(copied, groups);
    let all = names(groups);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    assert!(!all.is_empty());
    // kustomize writes this URL into each runbook_url.
    assert_eq!(object["metadata"]["annotations"]["porch-fn.example/runbooks"], RUNBOOKS);
}

/// Each alert compares its value with a recorded threshold. Only an alert on a condition that is
/// true or false compares with 0 or 1.
#[test]
fn the_thresholds_of_alerts_are_in_one_place() {
    let file = manifest(RULES);
    let mut recorded = BTreeSet::new();
    for rule in rules(&file["groups"]).filter(|rule| !rule["record"].is_null()) {
        assert_eq!(rule["record"], THRESHOLD);
        assert!(rule["expr"].as_str().unwrap().starts_with("vector("), "{rule}");
        let name = rule["labels"]["threshold"].as_str().unwrap();
        assert!(recorded.insert(name), "{name} is recorded once");
    }
    let mut used = BTreeSet::new();
    for rule in alerts(&file["groups"]) {
        for limit in rule["expr"].as_str().unwrap().split(['<', '>']).skip(1) {
            let limit = limit.trim_start();
            if limit.starts_with(&format!("scalar({THRESHOLD}{{")) {
                used.insert(label(limit, "threshold").unwrap());
                continue;
            }
            let number: String = limit.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            assert!(["0", "1"].contains(&number.as_str()), "{} compares with {limit}", rule["alert"]);
        }
    }
    assert_eq!(used, recorded);
}

/// kube-state-metrics reports the containers of the whole cluster, so alerts on its metrics select
/// our containers by namespace and name.
#[test]
fn alerts_on_containers_name_those_of_the_manifests() {
    let deployments = deployments();
    let ours: BTreeSet<_> = deployments
        .iter()
        .map(|deployment| deployment["spec"]["template"]["spec"]["containers"][0]["name"].as_str().unwrap())
        .collect();
    let with_functions: BTreeSet<_> = ours.iter().copied().chain(["function"]).collect();
    let file = manifest(RULES);
    let values = |expression: &str, name: &str| -> Vec<String> {
        let selected = label(&expression.replace("=~", "="), name).unwrap_or_default().to_owned();
        selected.split('|').map(str::to_owned).collect()
    };
    let mut checked = 0;
    for rule in alerts(&file["groups"]) {
        let expression = rule["expr"].as_str().unwrap();
        if words(expression, "kube_").is_empty() {
            continue;
        }
        checked += 1;
        let namespaces = values(expression, "namespace");
        let containers = values(expression, "container");
        let expected = if namespaces.iter().any(|namespace| namespace == FUNCTIONS) {
            &with_functions
        } else {
            assert_eq!(namespaces, [HOME]);
            &ours
        };
        let containers: BTreeSet<_> = containers.iter().map(String::as_str).collect();
        assert_eq!(&containers, expected, "{}", rule["alert"]);
    }
    assert_eq!(checked, 2);
}

#[test]
fn each_alert_says_what_to_do_in_words_that_lead_somewhere() {
    let dashboard: Value = serde_json::from_str(&text("dashboard/porch-functions.json")).unwrap();
    let rows: BTreeSet<_> = list(&dashboard["panels"])
        .filter(|panel| panel["type"] == "row")
        .map(|row| row["title"].as_str().unwrap())
        .collect();
    let mut named = 0;
    for rule in alerts(&manifest(RULES)["groups"]) {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let [summary, description] =
            ["summary", "description"].map(|part| rule["annotations"][part].as_str().unwrap_or_default());
        assert!(!summary.is_empty(), "{name} has no summary");
        assert!(description.len() > 50, "{name} does not say what to do: {description:?}");
        for flag in words(description, "--") {
            let known = PAGES.iter().any(|page| page.contains(flag));
            assert!(known, "{name} names {flag}, which no page of docs/ has");
        }
        for row in description.split("dashboard's row \"").skip(1) {
            let row = row.split_once('"').unwrap().0;
            assert!(rows.contains(row), "{name} names the row {row:?} of {rows:?}");
            named += 1;
        }
        for section in description.split("section \"").skip(1) {
            let section = section.split_once('"').unwrap().0;
            assert!(TROUBLESHOOTING.contains(&format!("\n## {section}\n")), "{name} names {section:?}");
            named += 1;
        }
        // Web servers that render Markdown write a heading's anchor in lower case.
        assert_eq!(rule["annotations"]["runbook_url"], format!("{RUNBOOKS}#{}", name.to_lowercase()));
        let heading = format!("\n### {name}\n");
        assert!(TROUBLESHOOTING.contains(&heading), "{name} has no section in docs/troubleshooting.md");
    }
    assert!(named > 3, "rows and sections are found in descriptions");
}

/// promtool runs the test cases. This test checks only that each alert has them.
#[test]
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let tests = manifest("alerts/porch-functions.tests.yaml");
    for rule in alerts(&manifest(RULES)["groups"]) {
        let name = rule["alert"].as_str().unwrap();
        let case = list(&tests["tests"]).find(|case| case["name"] == name);
        let case = case.unwrap_or_else(|| panic!("{name} has no case in alerts/porch-functions.tests.yaml"));
        let [test] = case["promql_expr_test"].as_array().unwrap().as_slice() else {
            panic!("{name} is asked for once");
        };
        let asked = format!("ALERTS{{alertname=\"{name}\", alertstate=\"firing\"}}");
        assert_eq!(test["expr"], asked);
        let firing: Vec<_> =
            list(&test["exp_samples"]).map(|sample| sample["labels"].as_str().unwrap()).collect();
        assert!(!firing.is_empty(), "{name} fires in its case");
        for alert in &firing {
            assert!(!is_quiet(alert), "{name}");
            // The firing alert must have the labels that its texts use.
            for annotation in rule["annotations"].as_object().unwrap().values() {
                for shown in annotation.as_str().unwrap().split("$labels.").skip(1) {
                    let shown = shown.split_once(' ').unwrap().0;
                    assert!(label(alert, shown).is_some(), "{name} shows {shown}, which is not in {alert}");
                }
            }
        }
        let series: Vec<_> =
            list(&case["input_series"]).map(|series| series["series"].as_str().unwrap()).collect();
        let expression = rule["expr"].as_str().unwrap();
        let metrics = words(expression, "porch_fn_").into_iter().chain(words(expression, "kube_"));
        for metric in metrics {
            let there = |series: &&&str| series.split_once('{').unwrap().0 == metric && is_quiet(series);
            assert!(series.iter().any(|one| there(&one)), "{name} has no quiet {metric}");
        }
    }
}

/// Whether a series belongs to the namespace `quiet` or the pod `quiet`, for which no alert may
/// fire.
fn is_quiet(series: &str) -> bool {
    ["namespace", "pod"].iter().any(|name| label(series, name) == Some("quiet"))
}

/// Routers and runners have metrics of the same names, which the dashboard separates by job.
#[test]
fn routers_and_runners_are_scraped_as_two_jobs() {
    let [monitor, single] = pod_monitors();
    let by = monitor["jobLabel"].as_str().expect("the PodMonitor says which label is the job");
    let [router, shard, runner] = deployments().try_into().unwrap();
    let (jobs, ports): (Vec<_>, BTreeSet<_>) =
        [&router, &shard].map(|one| shown_by(one, by)).into_iter().unzip();
    assert_eq!(jobs, ["function-router", "function-runner-shards"]);
    let single_by = single["jobLabel"].as_str().unwrap();
    let (single_job, single_port) = shown_by(&runner, single_by);
    assert_eq!(single["selector"], json!({"matchLabels": {single_by: single_job}}));
    let [selected] = monitor["selector"]["matchExpressions"].as_array().unwrap().as_slice() else {
        panic!("one selector: {monitor}");
    };
    assert_eq!((&selected["key"], &selected["values"]), (&by.into(), &jobs.clone().into()));
    let asked = |monitor: &Value| -> BTreeSet<_> {
        list(&monitor["podMetricsEndpoints"]).map(|one| one["port"].as_str().unwrap().to_owned()).collect()
    };
    assert!(asked(&monitor).iter().eq(&ports), "{monitor}");
    assert!(asked(&single).iter().eq([single_port]), "{single}");

    // The configuration for Prometheus without its operator must select the same jobs and ports.
    // `foreign::metrics` tests that its relabeling rules produce these jobs.
    let scrape = &manifest("alerts/prometheus.yaml")["scrape_configs"][0];
    let discovery = &scrape["kubernetes_sd_configs"][0];
    assert_eq!(
        (&discovery["role"], &discovery["namespaces"]["names"][0]),
        (&"pod".into(), &"porch-system".into())
    );
    let port = ports.first().unwrap();
    let regex = format!("({});.*;{port}|.*;{single_job};{single_port}", jobs.join("|"));
    assert_eq!(scrape["relabel_configs"][0]["regex"], regex);
}

/// Porch's packages own Porch's objects. Tools that reconcile these packages would revert the
/// changes of our base.
#[test]
fn the_base_touches_no_object_of_porch() {
    let package = porch_fn_package::read(Path::new(DEPLOY), 1 << 20).unwrap();
    let base = manifest("kustomization.yaml");
    let resources = || list(&base["resources"]).map(|file| file.as_str().unwrap());
    let files: BTreeSet<_> = package.paths().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(files, resources().chain(["Kptfile"]).collect(), "kpt and kustomize have the same files");

    let ours: Vec<_> = resources().flat_map(|file| objects(&Path::new(DEPLOY).join(file))).collect();
    assert_eq!(package.item_count(), ours.len() + 1);
    let porch = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/porch");
    let mut theirs = BTreeSet::new();
    for version in ["1.5", "1.6", "next"] {
        for file in fs::read_dir(porch.join(version)).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "yaml") {
                theirs.extend(objects(&file).iter().map(name));
            }
        }
    }
    assert!(theirs.contains("Service porch-system/function-runner"), "{theirs:?}");
    for object in &ours {
        assert!(!theirs.contains(&name(object)), "{} is Porch's", name(object));
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/part-of"], "porch-function-runner", "{}", name(object));
    }
}

/// A user may remove this project by its label or by kpt. Porch's objects must then stay.
#[test]
fn components_that_change_objects_of_porch_leave_them_behind() {
    for file in ["take-over/service.yaml", "take-over-1.5/service.yaml", "pod-security/namespaces.yaml"] {
        for object in objects(&Path::new(DEPLOY).join("components").join(file)) {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], json!(null), "{file}");
            let detached = &metadata["annotations"]["client.lifecycle.config.k8s.io/deletion"];
            assert_eq!(detached, "detach", "{file}");
        }
    }
}

/// A node that runs short of memory first evicts pods that use more memory than they request.
#[test]
fn requests_and_limits_of_memory_fit_the_messages_held() {
    const DEFAULT: u64 = 512 * 1024 * 1024;
    for deployment in &deployments() {
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let flag = |flag: &Value| {
            flag.as_str().unwrap().strip_prefix("--max-inflight-bytes=").map(|held| held.parse().unwrap())
        };
        let held = list(&container["args"]).find_map(flag).unwrap_or(DEFAULT);
        let resources = &container["resources"];
        let [request, limit] = ["requests", "limits"].map(|kind| bytes(&resources[kind]["memory"]));
        assert!(request > held && limit > held * 5 / 2, "{}: {resources}", name(deployment));
    }
}

#[test]
fn components_are_listed_and_described() {
    let (base, readme) = (text("kustomization.yaml"), text("README.md"));
    let mut count = 0;
    for entry in fs::read_dir(Path::new(DEPLOY).join("components")).unwrap() {
        let component = entry.unwrap().file_name().into_string().unwrap();
        assert!(base.contains(&format!("\n# - components/{component}\n")), "{component} is in the base");
        assert!(readme.contains(&format!("\n| `{component}` | ")), "{component} is in README.md");
        count += 1;
    }
    assert_eq!(count, base.matches("- components/").count());
}

/// Each file allows one kind of traffic. A file that the kustomization does not list has no effect.
#[test]
fn network_policies_leave_functions_without_a_network() {
    let folder = "components/network-policies";
    let listed = manifest(&format!("{folder}/kustomization.yaml"));
    let files: Vec<_> = list(&listed["resources"]).map(|file| file.as_str().unwrap()).collect();
    let there = fs::read_dir(Path::new(DEPLOY).join(folder)).unwrap().count();
    assert_eq!(there, files.len() + 1, "all files are listed: {files:?}");
    let mut of_functions = 0;
    for file in files {
        for policy in objects(&Path::new(DEPLOY).join(folder).join(file)) {
            let (name, spec) = (name(&policy), &policy["spec"]);
            if policy["metadata"]["namespace"] == FUNCTIONS {
                of_functions += 1;
                assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]), "{name}");
                assert_eq!(spec["egress"], json!([]), "{name}");
            }
            // Only the cluster's DNS may be queried. If port 53 of any address were allowed, data
            // could leave the cluster through it.
            for rule in list(&spec["egress"]) {
                let is_dns = list(&rule["ports"]).any(|port| port["port"] == 53);
                assert!(!is_dns || rule["to"][0]["podSelector"].is_object(), "{name}: {rule}");
            }
        }
    }
    assert_eq!(of_functions, 1);
}

/// An autoscaler ignores a metric that does not exist, and then never scales in.
#[test]
fn autoscalers_use_metrics_that_exist() {
    let page = include_str!("../../../docs/monitoring.md");
    let base = manifest("examples/hpa-waiting-calls/kustomization.yaml").to_string();
    let keda = manifest("examples/keda/scaled-object.yaml").to_string();
    let metrics = words(&base, "porch_fn_");
    assert_eq!(metrics, words(&keda, "porch_fn_"));
    assert!(metrics.contains("porch_fn_runner_calls_waiting"));
    for metric in metrics {
        assert!(page.contains(&format!("`{metric}")), "{metric} is not in docs/monitoring.md");
    }
}

/// The component sets requests and limits only for containers that have none.
#[test]
fn limits_of_function_pods_are_for_the_function_namespace() {
    let limits = manifest("components/function-pod-limits/limits.yaml");
    assert_eq!(limits["metadata"]["namespace"], FUNCTIONS);
    let [container] = limits["spec"]["limits"].as_array().unwrap().as_slice() else {
        panic!("one kind of limit: {limits}");
    };
    assert_eq!(container["type"], "Container");
    let [request, limit] = ["defaultRequest", "default"].map(|kind| bytes(&container[kind]["memory"]));
    assert!(request < limit);
    // With a maximum, the API server would refuse pods whose FunctionConfig asks for more.
    assert!(container["max"].is_null() && container["min"].is_null(), "{container}");
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let [kind, namespace, name] = [&object["kind"], &metadata["namespace"], &metadata["name"]]
        .map(|part| part.as_str().unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}

#[test]
fn images_are_built_by_the_compiler_that_the_workspace_asks_for() {
    let toolchain = fs::read_to_string(Path::new(DEPLOY).join("../rust-toolchain.toml")).unwrap();
    let (_, version) = toolchain.split_once("channel = \"").unwrap();
    let (minor, _) = version.split_once('"').unwrap().0.rsplit_once('.').unwrap();
    for image in ["function-runner", "wrapper-server"] {
        let dockerfile = text(&format!("images/{image}/Dockerfile"));
        let builder = format!("\nARG BUILDER=docker.io/library/rust:{minor}-");
        assert!(dockerfile.contains(&builder), "{image}: {minor}");
        // If the build context contained rust-toolchain.toml, rustup would download everything that
        // the file requests.
        let ignored = text(&format!("images/{image}/Dockerfile.dockerignore"));
        assert!(ignored.contains("\n*\n") && !ignored.contains("\n!rust-toolchain"), "{image}");
    }
}
