//! Files that configure functions, changed while the runner runs: seen by a call and on the admin port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use porch_fn_runner::{App, Flags, Pods, start};
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, eventually, get};
use serde_json::{Value, json};
use tonic::Code;

const IMAGE: &str = "example.com/functions/f:v1";
const INPUT: &str = "kind: ResourceList\n";

struct Runner {
    sandbox: Sandbox,
    app: App,
    client: Client,
}

impl Runner {
    /// With both files, which are read again ten times a second.
    async fn start(config: &str, cache: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.script("functions/f", "cat");
        let args = [
            "porch-fn-runner".to_owned(),
            "--address=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            "--admin-port=0".to_owned(),
            "--scan-interval=100ms".to_owned(),
            "--pod-ttl=20m".to_owned(),
            format!("--functions={}", sandbox.path("functions").display()),
            format!("--config={}", sandbox.write("config.yaml", config).display()),
            format!("--pod-cache-config={}", sandbox.write("cache.yaml", cache).display()),
        ];
        let (flags, set) = porch_fn_flags::parse_with_set::<Flags>(args.into_iter().map(Into::into)).unwrap();
        let app = start(flags, &set, Pods::Flags).await.unwrap();
        let client = Client::new(app.address());
        Self { sandbox, app, client }
    }

    /// In one step, as a ConfigMap's mount changes.
    fn change(&self, name: &str, text: &str) -> PathBuf {
        let draft = self.sandbox.write(&format!("{name}.new"), text);
        let path = self.sandbox.path(name);
        fs::rename(draft, &path).unwrap();
        path
    }

    async fn setting(&self, name: &str) -> Value {
        let (status, page) = get(self.app.admin_address(), &format!("/config?image={IMAGE}")).await;
        assert_eq!(status, 200, "{page}");
        let page: Value = serde_json::from_str(&page).unwrap();
        let found = page["settings"].as_array().unwrap().iter().find(|row| row["setting"] == name);
        found.cloned().unwrap_or_default()
    }

    async fn until(&self, name: &str, expected: Value) {
        let what = format!("{name} is {expected}");
        eventually(&what, async || (self.setting(name).await == expected).then_some(())).await;
    }

    async fn until_metric(&self, line: &str) {
        let has = async || get(self.app.admin_address(), "/metrics").await.1.contains(line).then_some(());
        eventually(line, has).await;
    }
}

#[tokio::test]
async fn executables_follow_their_file() {
    let runner = Runner::start("functions: []", "").await;
    runner.client.call(IMAGE, INPUT).await.fails(Code::NotFound, &format!("function \"{IMAGE}\" not found"));
    runner.change("config.yaml", &format!("functions: [{{function: f, images: ['{IMAGE}']}}]"));
    let path = runner.sandbox.path("functions/f");
    runner
        .until("executable", json!({"setting": "executable", "value": path, "from": "--config, function f"}))
        .await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);

    runner.change("config.yaml", "functions:\n- {}\n");
    runner.until_metric("porch_fn_runner_config_valid{source=\"config\"} 0").await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT, "the last good one stays");
    runner.change("config.yaml", "functions: []");
    runner.until_metric("porch_fn_runner_config_valid{source=\"config\"} 1").await;
    runner.until("executable", Value::Null).await;
    runner.client.call(IMAGE, INPUT).await.fails(Code::NotFound, &format!("function \"{IMAGE}\" not found"));
}

#[tokio::test]
async fn limits_follow_their_file_and_say_where_they_come_from() {
    let runner = Runner::start("", "").await;
    let row = |value: &str, from: &str| json!({"setting": "ttl", "value": value, "from": from});
    runner.until("ttl", row("20m0s", "--pod-ttl")).await;
    runner.change("cache.yaml", &format!("- {{name: '{IMAGE}', timeToLive: 1h}}"));
    let from = format!("--pod-cache-config, entry {IMAGE}");
    runner.until("ttl", row("1h0m0s", &from)).await;
    runner.change("cache.yaml", "- {name: ''}");
    runner.until_metric("porch_fn_runner_config_valid{source=\"pod-cache-config\"} 0").await;
    assert_eq!(runner.setting("ttl").await, row("1h0m0s", &from), "the last good one stays");
    let max =
        json!({"setting": "maxPods", "value": 1, "from": "default of --max-parallel-pods-per-function"});
    assert_eq!(runner.setting("maxPods").await, max);
}

#[tokio::test]
async fn a_config_page_needs_an_image() {
    let runner = Runner::start("", "").await;
    for (query, expected) in [("", "image=IMAGE"), ("?image=", "image=IMAGE"), ("?image=A%20B", "A B")] {
        let (status, page) = get(runner.app.admin_address(), &format!("/config{query}")).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert!(status == 400 && page["error"].as_str().unwrap().contains(expected), "{status} {page}");
    }
}
