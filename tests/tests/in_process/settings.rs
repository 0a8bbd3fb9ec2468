//! Files that configure functions, changed while the runner runs: calls and the admin port follow them.

use porch_fn_tests::process::{Sandbox, eventually, get, get_json, until_metric};
use serde_json::{Value, json};
use tonic::Code;

use super::Runner;

const IMAGE: &str = "example.com/functions/f:v1";
const INPUT: &str = "kind: ResourceList\n";

/// A runner that reads its files ten times a second, without functions.
async fn start() -> (Runner, Sandbox) {
    let files = Sandbox::new();
    let cache = format!("--pod-cache-config={}", files.write("cache.yaml", "").display());
    let runner = Runner::start(&[], &["--scan-interval=100ms", "--pod-ttl=20m", &cache]).await;
    (runner, files)
}

async fn setting(runner: &Runner, name: &str) -> Value {
    let page = get_json(runner.app.admin_address(), &format!("/config?image={IMAGE}")).await;
    let found = page["settings"].as_array().unwrap().iter().find(|row| row["setting"] == name);
    found.cloned().unwrap_or_default()
}

async fn until_setting(runner: &Runner, name: &str, expected: Value) {
    let reached = async || (setting(runner, name).await == expected).then_some(());
    eventually(&format!("{name} is {expected}"), reached).await;
}

async fn until_valid(runner: &Runner, source: &str, valid: u64) {
    let series = format!("porch_fn_runner_config_valid{{source=\"{source}\"}}");
    until_metric(runner.app.admin_address(), &series, valid).await;
}

#[tokio::test]
async fn executables_follow_their_file() {
    let (runner, _files) = start().await;
    let not_found = format!("function \"{IMAGE}\" not found");
    runner.client.call(IMAGE, INPUT).await.fails(Code::NotFound, &not_found);
    let path = runner.sandbox.script("functions/f", "cat");
    runner.sandbox.write("exec.yaml", format!("functions: [{{function: f, images: ['{IMAGE}']}}]"));
    let row = json!({"setting": "executable", "value": path, "from": "--config, function f"});
    until_setting(&runner, "executable", row).await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);

    runner.sandbox.write("exec.yaml", "functions:\n- {}\n");
    until_valid(&runner, "config", 0).await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT, "the last good one stays");
    runner.sandbox.write("exec.yaml", "functions: []");
    until_valid(&runner, "config", 1).await;
    until_setting(&runner, "executable", Value::Null).await;
    runner.client.call(IMAGE, INPUT).await.fails(Code::NotFound, &not_found);
}

#[tokio::test]
async fn limits_follow_their_file_and_name_their_source() {
    let (runner, files) = start().await;
    let row = |value: &str, from: &str| json!({"setting": "ttl", "value": value, "from": from});
    until_setting(&runner, "ttl", row("20m0s", "--pod-ttl")).await;
    files.write("cache.yaml", format!("- {{name: '{IMAGE}', timeToLive: 1h}}"));
    let from = format!("--pod-cache-config, entry {IMAGE}");
    until_setting(&runner, "ttl", row("1h0m0s", &from)).await;
    files.write("cache.yaml", "- {name: ''}");
    until_valid(&runner, "pod-cache-config", 0).await;
    assert_eq!(setting(&runner, "ttl").await, row("1h0m0s", &from), "the last good one stays");
    let max =
        json!({"setting": "maxPods", "value": 1, "from": "default of --max-parallel-pods-per-function"});
    assert_eq!(setting(&runner, "maxPods").await, max);
}

#[tokio::test]
async fn a_config_page_needs_an_image() {
    let (runner, _files) = start().await;
    for (query, expected) in [("", "image=IMAGE"), ("?image=", "image=IMAGE"), ("?image=A%20B", "A B")] {
        let (status, page) = get(runner.app.admin_address(), &format!("/config{query}")).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert!(status == 400 && page["error"].as_str().unwrap().contains(expected), "{status} {page}");
    }
}
