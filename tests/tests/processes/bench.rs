//! `porch-fn bench` as a process.

use std::process::Output;

use porch_fn_tests::process::{Sandbox, binary};
use serde_json::Value;

/// Copies its input.
const COPY: &str = "example.com/functions/copy:v1";
/// Fails.
const FAIL: &str = "example.com/functions/fail:v1";

async fn bench(sandbox: &Sandbox, args: &[&str]) -> Output {
    sandbox.run(binary("porch-fn"), [&["bench"], args].concat(), b"").await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn calls_are_measured_and_two_addresses_compared() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner(sandbox.executables(&[(COPY, "cat"), (FAIL, "exit 3")])).await;
    let (address, pid) = (runner.address().to_string(), runner.pid().unwrap().to_string());
    let twice = ["--address", &address, "--address", &address, "--pid", &pid, "--rounds", "2"];
    let closed = ["-i", COPY, "--requests", "40", "--concurrency", "4", "--connections", "2", "-o", "json"];
    let ended = bench(&sandbox, &[&closed[..], &twice].concat()).await;
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    for index in [0, 1] {
        let one = &report["addresses"][index];
        assert_eq!((&one["calls"], &one["codes"]["OK"]), (&80.into(), &80.into()), "{report}");
        assert!(one["milliseconds"]["p50"].as_f64().unwrap() > 0.0, "{report}");
        assert!(one["processes"][0]["cpu_ms_per_call"].as_f64().unwrap() > 0.0, "{report}");
    }
    let ratio = &report["ratios"]["calls_per_second"];
    assert!(ratio["least"].as_f64() <= ratio["median"].as_f64(), "{report}");

    // At this rate, 20 calls take at least 0.19 s.
    let open =
        ["-i", COPY, "--requests", "20", "--rate", "100", "--concurrency", "20", "--address", &address];
    let ended = bench(&sandbox, &[&open[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(report["addresses"][0]["calls_per_second"].as_f64().unwrap() <= 106.0, "{report}");

    let ended = bench(&sandbox, &["--cold", "-i", COPY, "-i", FAIL, "--address", &address]).await;
    let table = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{table}");
    assert!(
        table.contains(&format!("{COPY}   OK ")) && table.contains(&format!("{FAIL}   INTERNAL ")),
        "{table}"
    );
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn wrong_arguments_remote_addresses_and_failing_functions_are_refused() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner(sandbox.executables(&[(FAIL, "exit 3")])).await;
    let address = runner.address().to_string();
    for (args, code, expected) in [
        (&["--requests", "1"][..], 64, "--image"),
        (&["-i", FAIL, "--address", "192.0.2.1:9445"], 64, "add --allow-remote"),
        (&["-i", FAIL, "-i", COPY], 64, "give one --image, or --cold"),
        (&["-i", FAIL, "--pid", "4294967295"], 64, "there is no /proc/4294967295/stat"),
        (&["-i", FAIL, "--address", "127.0.0.1:1"], 2, "cannot call 127.0.0.1:1"),
        (&["-i", FAIL, "--address", &address], 1, "the function fails with INTERNAL"),
    ] {
        let ended = bench(&sandbox, args).await;
        let stderr = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && ended.stdout.is_empty(), "{args:?}: {stderr}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_first_call_reports_the_phases_of_its_pods_start() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner(sandbox.local_pods(&[(COPY, "cat")])).await;
    let router = sandbox.router(&[&runner], &[]).await;
    let address = router.address().to_string();
    let mut starts = Vec::new();
    for _ in 0..2 {
        let ended = bench(&sandbox, &["--cold", "-i", COPY, "--address", &address, "-o", "json"]).await;
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        starts.push(report["cold"][0]["start"].as_str().unwrap().to_owned());
    }
    let phases: Vec<_> = starts[0].split(", ").filter_map(|phase| phase.split('=').next()).collect();
    assert_eq!(phases, ["create", "address", "serve"], "{starts:?}");
    assert_eq!(starts[1], "", "the pod was warm");
}
