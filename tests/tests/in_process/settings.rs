//! The file of executables changes while the runner runs. Calls and the admin port use the new
//! content. `processes::pods` tests the file of pods, and runner/settings tests the page /config.

use porch_fn_tests::process::{eventually, get, get_json, wait_metric};
use serde_json::{Value, json};
use tonic::Code;

use super::Runner;

const IMAGE: &str = "example.com/functions/f:v1";
const INPUT: &str = "kind: ResourceList\n";

/// A runner without functions that reads its files ten times a second.
async fn start() -> Runner {
    Runner::start(&[], &["--scan-interval=100ms"]).await
}

async fn wait_executable(runner: &Runner, expected: Option<Value>) {
    eventually(&format!("the executable is {expected:?}"), async || {
        let page = get_json(runner.app.admin_address(), &format!("/config?image={IMAGE}")).await;
        let found = page["settings"].as_array()?.iter().find(|row| row["setting"] == "executable").cloned();
        (found == expected).then_some(())
    })
    .await;
}

async fn wait_valid(runner: &Runner, valid: u64) {
    let series = "porch_fn_runner_config_valid{source=\"config\"}";
    wait_metric(runner.app.admin_address(), series, valid).await;
}

#[tokio::test]
async fn a_changed_file_of_executables_takes_effect() {
    let runner = start().await;
    let not_found = format!("function \"{IMAGE}\" not found");
    runner.client.call(IMAGE, INPUT).await.assert_failed(Code::NotFound, &not_found);
    let path = runner.sandbox.script("functions/f", "cat");
    runner.sandbox.write("exec.yaml", format!("functions: [{{function: f, images: ['{IMAGE}']}}]"));
    let row = json!({"setting": "executable", "value": path, "from": "--config, function f"});
    wait_executable(&runner, Some(row)).await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);

    runner.sandbox.write("exec.yaml", "functions:\n- {}\n");
    wait_valid(&runner, 0).await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT, "the last valid file stays in effect");
    runner.sandbox.write("exec.yaml", "functions: []");
    wait_valid(&runner, 1).await;
    wait_executable(&runner, None).await;
    runner.client.call(IMAGE, INPUT).await.assert_failed(Code::NotFound, &not_found);
}

#[tokio::test]
async fn a_config_page_needs_an_image() {
    let runner = start().await;
    for (query, expected) in [("", "image=IMAGE"), ("?image=", "image=IMAGE"), ("?image=A%20B", "A B")] {
        let (status, page) = get(runner.app.admin_address(), &format!("/config{query}")).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert!(status == 400 && page["error"].as_str().unwrap().contains(expected), "{status} {page}");
    }
}
