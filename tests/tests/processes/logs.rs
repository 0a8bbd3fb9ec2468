//! The lines that servers log: the router's log of its calls, and the formats.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server};
use serde_json::Value;

use super::INPUT;

const IMAGE: &str = "example.com/functions/echo:v1";

/// The part of each attempt's log line from the image to the duration.
fn attempts(log: &str) -> Vec<&str> {
    let attempt = |line| Some(str::split_once(line, "attempt ended image=")?.1.split_once(" took=")?.0);
    log.lines().filter_map(attempt).collect()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn at_level_4_each_attempt_is_logged_with_runner_reason_and_outcome() {
    let sandbox = Sandbox::new();
    let flags = sandbox.executables(&[(IMAGE, "exec cat")]);
    let mut runners = [sandbox.runner(&flags).await, sandbox.runner(&flags).await];
    let all = [&runners[0], &runners[1]];
    let (quiet, detailed) =
        (sandbox.router(&all, &["--log-level=2"]).await, sandbox.router(&all, &["--log-level=4"]).await);
    let call = async |router: &Server| {
        assert_eq!(Client::new(router.address()).call(IMAGE, INPUT).await.output(), INPUT);
        router.log()
    };
    let line = |runner: &Server, reason: &str| {
        let runner = runner.address();
        format!("{IMAGE:?} runner={runner} reason={reason:?} attempt=1 outcome=\"answered\" code=\"OK\"")
    };
    let log = call(&detailed).await;
    let owner = runners.iter().position(|runner| attempts(&log) == [line(runner, "owner")]).expect(&log);
    runners[owner].kill().await;
    detailed.wait_log("runner is unavailable").await;
    let log = call(&detailed).await;
    assert_eq!(attempts(&log)[1..], [line(&runners[1 - owner], "owner unhealthy")]);
    assert_eq!(attempts(&call(&quiet).await), [""; 0]);
}

/// Router, runner, the wrapper-server of its pod, and a wrapper-server alone log everything that
/// they log during a call, a failed call and a drain. Returns the lines.
async fn log_of_all_servers(format: &str, level: u8) -> Vec<String> {
    let sandbox = Sandbox::new();
    let flags = [format.to_owned(), format!("--log-level={level}")];
    let pods = sandbox.local_pods(&[(IMAGE, "exec cat")]);
    let mut runner = sandbox.runner(pods.into_iter().chain(flags.iter().map(Into::into))).await;
    let mut router = sandbox.router(&[&runner], &flags.each_ref().map(String::as_str)).await;
    let mut wrapper =
        sandbox.server("wrapper-server", [&format!("--verbosity={level}"), format, "--", "/missing"]).await;
    assert_eq!(Client::new(router.address()).call(IMAGE, INPUT).await.output(), INPUT);
    let failed = Client::new(wrapper.address()).call(IMAGE, INPUT).await;
    assert_ne!(failed.code, tonic::Code::Ok);
    let wrapper_of_pod = sandbox.descendants_with("--exit-with-stdin");
    let told = wrapper_of_pod.iter().all(|process| process.command.contains("--log-format=json"));
    assert_eq!((wrapper_of_pod.len(), told), (1, format.ends_with("json")), "{wrapper_of_pod:?}");
    let mut lines = Vec::new();
    for server in [&mut router, &mut runner, &mut wrapper] {
        assert!(server.terminate().await.success());
        let log = server.log();
        assert!(log.contains("draining"), "{log}");
        lines.extend(log.lines().map(str::to_owned));
    }
    lines
}

/// Whether the line has a path of Rust, such as `hyper::client`. Addresses of IPv6, such as
/// `[::]:9445` and `fe80::1`, are none.
fn has_rust_path(line: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = |word: &str| !word.is_empty() && !word.chars().all(|c| c.is_ascii_hexdigit());
    line.match_indices("::").any(|(at, colons)| {
        let (before, after) = (&line[..at], &line[at + colons.len()..]);
        let before = &before[before.trim_end_matches(is_word).len()..];
        let after = &after[..after.len() - after.trim_start_matches(is_word).len()];
        is_name(before) && is_name(after)
    })
}

#[test]
fn rust_paths_are_recognised() {
    for line in ["INFO porch_fn_router::app: x", "at h2::codec", "<tokio::Task>"] {
        assert!(has_rust_path(line), "{line}");
    }
    for line in ["[::]:9445", "fe80::1", "dns:///x:1", "porch_fn_router_calls_total", "pod:probe", "a:: b"] {
        assert!(!has_rust_path(line), "{line}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn lines_of_text_name_no_rust_module() {
    // At level 5, the HTTP/2 library logs texts of its own, which name its functions.
    let lines = log_of_all_servers("--log-format=text", 4).await;
    for line in &lines {
        assert!(!has_rust_path(line), "{line}");
        // A module at the root of a crate.
        let module = line.split_whitespace().find(|word| {
            word.ends_with(':') && (word.starts_with("porch_fn_") || word.starts_with("wrapper_server"))
        });
        assert_eq!(module, None, "{line}");
    }
    assert!(
        lines.iter().any(|line| line.contains(" INFO pool: creating pod image=")),
        "{}",
        lines.join("\n")
    );
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn lines_of_json_are_flat_objects() {
    let mut created = None;
    for line in log_of_all_servers("--log-format=json", 5).await {
        let object: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(["timestamp", "level", "message"].iter().all(|name| object[name].is_string()), "{line}");
        let nested = object.as_object().unwrap().values().find(|value| value.is_object() || value.is_array());
        assert_eq!(nested, None, "{line}");
        created = created.or((object["message"] == "creating pod").then_some(object));
    }
    let created = created.expect("a line");
    assert_eq!((&created["level"], &created["span"]), (&"INFO".into(), &"pool".into()));
    assert_eq!((&created["image"], &created["slot"]), (&IMAGE.into(), &0.into()));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_server_that_does_not_start_logs_the_reason_in_the_format() {
    let sandbox = Sandbox::new();
    let router = porch_fn_tests::process::binary("porch-fn-router");
    let args = ["--log-format=json", "--runners=static:///127.0.0.1:1", "--address=192.0.2.1", "--port=1"];
    let ended = sandbox.run(router, args, b"").await;
    let line: Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert_eq!(line["message"], "porch-fn-router does not start");
    assert!(line["error"].as_str().unwrap().contains("192.0.2.1"), "{line}");
}
