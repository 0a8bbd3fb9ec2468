//! Tests of the runner that need a separate process: its environment, exit codes and signals, and
//! local pods together with the exec runtime.

use std::ffi::OsString;

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{PATIENCE, Sandbox, binary, eventually, flag};
use rustix::process::Signal;
use tonic::Code;

use super::INPUT;

/// Flags for an executable `exec:v1` and a pod function `pod:v1`; `both:v1` is both.
fn both_runtimes(sandbox: &Sandbox, exec: &str, pod: &str) -> Vec<OsString> {
    let mut flags = sandbox.executables(&[("exec:v1,both:v1", exec)]);
    flags.extend(sandbox.local_pods(&[("pod:v1", pod), ("both:v1", pod)]));
    flags.push("--drain-delay=0s".into());
    flags
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_exec_runtime_is_tried_before_pods_and_calls_are_counted_by_runtime_and_code() {
    let sandbox = Sandbox::new();
    let flags = both_runtimes(&sandbox, "echo exec >&2; exec cat", "echo pod >&2; exec cat");
    for (disabled, expected) in [
        ("", [("exec:v1", "exec\n"), ("both:v1", "exec\n"), ("pod:v1", "pod\n"), ("none:v1", "")]),
        ("exec", [("exec:v1", ""), ("both:v1", "pod\n"), ("pod:v1", "pod\n"), ("none:v1", "")]),
        ("pod", [("exec:v1", "exec\n"), ("both:v1", "exec\n"), ("pod:v1", ""), ("none:v1", "")]),
        ("exec,pod", [("exec:v1", ""), ("both:v1", ""), ("pod:v1", ""), ("none:v1", "")]),
    ] {
        let disabled = flag("disable-runtimes", disabled);
        let runner = sandbox.runner(flags.iter().chain([&disabled])).await;
        let client = Client::new(runner.address());
        for (image, log) in expected {
            let answer = client.call(image, INPUT).await;
            if log.is_empty() {
                answer.assert_failed(Code::NotFound, &format!("function \"{image}\" not found"));
            } else {
                assert_eq!((&answer.output()[..], answer.log().as_str()), (INPUT.as_bytes(), log), "{image}");
            }
        }
        let count = |log| expected.iter().filter(|call| call.1 == log).count() as u64;
        for (labels, log) in [
            ("runtime=\"Exec\",code=\"OK\"", "exec\n"),
            ("runtime=\"Pod\",code=\"OK\"", "pod\n"),
            ("runtime=\"None\",code=\"NOT_FOUND\"", ""),
        ] {
            let counted = runner.metric(&format!("porch_fn_runner_calls_total{{{labels}}}")).await;
            assert_eq!(counted.unwrap_or(0), count(log), "{labels}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn functions_get_a_small_environment_without_secrets() {
    let sandbox = Sandbox::new();
    let mut flags = both_runtimes(&sandbox, "env >&2; exec cat", "env >&2; exec cat");
    flags.push("--exec-env=PLANTED_FOR_EXEC,NOT_SET".into());
    let runner = sandbox
        .server_with("porch-fn-runner", flags, |command| {
            command
                .env("PLANTED_SECRET", "secret")
                .env("PLANTED_FOR_EXEC", "given")
                .env("TZ", "Europe/Prague")
                .env("HTTPS_PROXY", "http://proxy.example:3128");
        })
        .await;
    let client = Client::new(runner.address());
    for (image, given) in [("exec:v1", true), ("pod:v1", false)] {
        let answer = client.call(image, INPUT).await;
        answer.output();
        let seen = answer.log();
        let has = |variable: &str| seen.lines().any(|line| line.starts_with(variable));
        for expected in ["PATH=", "HOME=", "TZ=Europe/Prague", "HTTPS_PROXY=http://proxy.example:3128"] {
            assert!(has(expected), "{image} has no {expected} in\n{seen}");
        }
        assert!(!seen.contains("PLANTED_SECRET") && !seen.contains("CARGO"), "{image}:\n{seen}");
        assert_eq!(has("PLANTED_FOR_EXEC=given"), given, "{image}:\n{seen}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_removed_flag_is_read_with_a_warning() {
    let sandbox = Sandbox::new();
    for given in ["--prestart", "-prestart=false"] {
        let runner = sandbox.runner([given]).await;
        runner.wait_log("--prestart has no effect any more and goes in the next version: remove it").await;
        assert_eq!(runner.log().matches("no effect any more").count(), 1, "{}", runner.log());
    }
    let help = sandbox.run(binary("porch-fn-runner"), ["--help"], b"").await;
    assert!(!String::from_utf8_lossy(&help.stdout).contains("prestart"));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_error_in_a_flag_or_file_is_reported_in_one_line() {
    let sandbox = Sandbox::new();
    sandbox.write("broken.yaml", "functions: [{function: f, images: 3}]");
    let other = sandbox.runner([""; 0]).await;
    let taken = format!("--port={}", other.address().port());
    for (argument, code, expected) in [
        ("--nonsense", 64, "unexpected argument '--nonsense' found"),
        ("--pod-ttl=soon", 64, "invalid value 'soon' for '--pod-ttl "),
        ("--config=none.yaml", 64, "--config none.yaml: no such file or directory"),
        ("--functions=nowhere", 64, "--functions nowhere: no such file or directory"),
        ("--config=broken.yaml", 64, "--config broken.yaml: "),
        ("--pod-backend=local", 64, "--pod-backend=local needs --local-functions FILE"),
        (
            "--disable-runtimes=pods",
            64,
            "--disable-runtimes: there is no runtime \"pods\"; exec and pod are accepted",
        ),
        (&taken, 1, "cannot listen on "),
    ] {
        let args = ["--address=127.0.0.1", "--port=0", "--admin-port=0", "--log-level=0", argument];
        let ended = sandbox.run(binary("porch-fn-runner"), args, b"").await;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{argument}: {stderr}");
        assert!(stderr.starts_with(&format!("porch-fn-runner: {expected}")), "{argument}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{argument}: {stderr}");
        assert!(code == 64 || stderr.ends_with("; see --port\n"), "{stderr}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_default_files_are_optional() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner([""; 0]).await;
    let answer = Client::new(runner.address()).call("f:v1", INPUT).await;
    answer.assert_failed(Code::NotFound, "function \"f:v1\" not found");
    drop(runner);

    sandbox.script("functions/f", "exec cat");
    sandbox.write("config.yaml", "functions: [{function: f, images: ['f:v1']}]");
    let runner = sandbox.runner([""; 0]).await;
    assert_eq!(Client::new(runner.address()).call("f:v1", INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn packages_are_not_logged_at_any_level() {
    for level in 0..=5 {
        let sandbox = Sandbox::new();
        let mut flags = both_runtimes(&sandbox, "exec cat", "exec cat");
        flags.push(format!("--log-level={level}").into());
        let mut runner = sandbox.runner(flags).await;
        let client = Client::new(runner.address());
        for image in ["exec:v1", "pod:v1"] {
            let package = "kind: ResourceList # confidential";
            assert_eq!(client.call(image, package).await.code, Code::Ok, "{level}");
        }
        assert_eq!(runner.terminate().await.code(), Some(0));
        assert!(!runner.log().contains("confidential"), "{}", runner.log());
        assert_eq!(runner.log().is_empty(), level < 2, "{}", runner.log());
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn after_sigterm_calls_finish_and_pods_end() {
    let sandbox = Sandbox::new();
    let gated =
        |started| format!("touch $TMPDIR/{started}; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat");
    let mut flags = both_runtimes(&sandbox, &gated("exec-started"), &gated("pod-started"));
    flags.push("--drain-delay=100ms".into());
    let mut runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());
    let stopped = async {
        sandbox.wait_file("exec-started").await;
        sandbox.wait_file("pod-started").await;
        assert_eq!(runner.page("/readyz").await.0, 200);
        runner.signal(Signal::TERM);
        // The admin port stays open until the process ends.
        let draining =
            async || (runner.page("/readyz").await == (503, "starting or draining\n".into())).then_some(());
        eventually("the runner is not ready", draining).await;
        runner.wait_port_closed().await;
        assert_eq!(runner.page("/healthz").await.0, 200);
        sandbox.write("go", "");
    };
    let (exec, pod, ()) = tokio::join!(client.call("exec:v1", INPUT), client.call("pod:v1", INPUT), stopped);
    assert_eq!((exec.output(), pod.output()), (&INPUT.into(), &INPUT.into()));
    assert_eq!(runner.wait_exit().await.code(), Some(0));
    assert_eq!(sandbox.descendants(), []);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn local_pods_end_with_a_runner_that_is_killed() {
    let sandbox = Sandbox::new();
    let flags = both_runtimes(&sandbox, "", "touch $TMPDIR/started; sleep 1000 & wait");
    let mut runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());
    let killed = async {
        sandbox.wait_file("started").await;
        assert_eq!(
            sandbox.descendants_with("wrapper-server").len(),
            2,
            "the command lines of the runner and of the pod contain this name"
        );
        runner.kill().await
    };
    let (answer, status) = tokio::join!(client.try_call("pod:v1", INPUT, Some(PATIENCE)), killed);
    assert!(answer.is_err() && !status.success(), "{answer:?}");
    // The wrapper-server, the function and the function's child have all ended.
    sandbox.wait_no_process("").await;
}
