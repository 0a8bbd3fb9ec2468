//! What only a process of its own shows of the runner: its environment, exit codes, signals, and local pods
//! beside the exec runtime.

use std::ffi::OsString;

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{PATIENCE, Sandbox, binary, eventually, flag};
use rustix::process::Signal;
use tokio::net::TcpStream;
use tonic::Code;

const INPUT: &str = "kind: ResourceList\n";

/// Flags for an exec function `exec:v1` and a pod function `pod:v1`; `both:v1` is both.
fn both_runtimes(sandbox: &Sandbox) -> Vec<OsString> {
    sandbox.script("functions/f", "echo exec >&2; exec cat");
    let config = sandbox.write("exec.yaml", "functions: [{function: f, images: ['exec:v1', 'both:v1']}]");
    let command = "[sh, -c, 'echo pod >&2; exec cat']";
    let local = format!(
        "functions: [{{image: 'pod:v1', command: {command}}}, {{image: 'both:v1', command: {command}}}]"
    );
    vec![
        flag("functions", sandbox.path("functions")),
        flag("config", config),
        "--pod-backend=local".into(),
        flag("local-functions", sandbox.write("pods.yaml", local)),
        flag("wrapper-server", binary("wrapper-server")),
        "--drain-delay=0s".into(),
    ]
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn exec_comes_before_pods_and_then_there_is_nothing() {
    let sandbox = Sandbox::new();
    let flags = both_runtimes(&sandbox);
    let table = [
        ("", [("exec:v1", "exec\n"), ("both:v1", "exec\n"), ("pod:v1", "pod\n"), ("none:v1", "")]),
        ("exec", [("exec:v1", ""), ("both:v1", "pod\n"), ("pod:v1", "pod\n"), ("none:v1", "")]),
        ("pod", [("exec:v1", "exec\n"), ("both:v1", "exec\n"), ("pod:v1", ""), ("none:v1", "")]),
        ("exec,pod", [("exec:v1", ""), ("both:v1", ""), ("pod:v1", ""), ("none:v1", "")]),
    ];
    for (disabled, expected) in table {
        let disabled = flag("disable-runtimes", disabled);
        let runner = sandbox.server("porch-fn-runner", flags.iter().chain([&disabled])).await;
        let client = Client::new(runner.address());
        for (image, log) in expected {
            let answer = client.call(image, INPUT).await;
            if log.is_empty() {
                answer.fails(Code::NotFound, &format!("function \"{image}\" not found"));
            } else {
                assert_eq!((&answer.output()[..], answer.log().as_str()), (INPUT.as_bytes(), log), "{image}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn functions_see_what_they_need_of_the_environment_and_no_secrets() {
    let sandbox = Sandbox::new();
    let mut flags = both_runtimes(&sandbox);
    sandbox.script("functions/f", "env >&2; exec cat");
    sandbox.write("pods.yaml", "functions: [{image: 'pod:v1', command: [sh, -c, 'env >&2; exec cat']}]");
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
        for expected in
            ["PATH=", "HOME=", "TMPDIR=", "TZ=Europe/Prague", "HTTPS_PROXY=http://proxy.example:3128"]
        {
            assert!(has(expected), "{image} has no {expected} in\n{seen}");
        }
        assert!(!seen.contains("PLANTED_SECRET") && !seen.contains("CARGO"), "{image}:\n{seen}");
        assert_eq!(has("PLANTED_FOR_EXEC=given"), given, "{image}:\n{seen}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn mistakes_in_flags_and_files_end_it_with_64_and_one_line() {
    let sandbox = Sandbox::new();
    sandbox.write("broken.yaml", "functions: [{function: f, images: 3}]");
    let table = [
        ("--nonsense", "porch-fn-runner: unexpected argument '--nonsense' found"),
        ("--pod-ttl=soon", "porch-fn-runner: invalid value 'soon' for '--pod-ttl "),
        ("--config=none.yaml", "porch-fn-runner: --config none.yaml: no such file or directory"),
        ("--functions=nowhere", "porch-fn-runner: --functions nowhere: no such file or directory"),
        ("--config=broken.yaml", "porch-fn-runner: --config broken.yaml: "),
        ("--pod-backend=local", "porch-fn-runner: --pod-backend=local needs --local-functions FILE"),
        (
            "--disable-runtimes=pods",
            "porch-fn-runner: --disable-runtimes: there is no runtime \"pods\"; exec and pod are accepted",
        ),
    ];
    for (argument, expected) in table {
        let args = ["--port=0", "--admin-port=0", "--log-level=0", argument];
        let ended = sandbox.run(binary("porch-fn-runner"), args, b"").await;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(64), "{argument}: {stderr}");
        assert!(
            stderr.starts_with(expected) && stderr.trim_end().lines().count() == 1,
            "{argument}: {stderr}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_default_files_may_be_absent_and_are_used_when_there() {
    let sandbox = Sandbox::new();
    let runner = sandbox.server("porch-fn-runner", [""; 0]).await;
    let answer = Client::new(runner.address()).call("f:v1", INPUT).await;
    answer.fails(Code::NotFound, "function \"f:v1\" not found");
    drop(runner);

    sandbox.script("functions/f", "exec cat");
    sandbox.write("config.yaml", "functions: [{function: f, images: ['f:v1']}]");
    let runner = sandbox.server("porch-fn-runner", [""; 0]).await;
    assert_eq!(Client::new(runner.address()).call("f:v1", INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn every_log_level_serves_and_says_nothing_of_packages() {
    for level in 0..=5 {
        let sandbox = Sandbox::new();
        let mut flags = both_runtimes(&sandbox);
        flags.push(format!("--log-level={level}").into());
        let mut runner = sandbox.server("porch-fn-runner", flags).await;
        let client = Client::new(runner.address());
        for image in ["exec:v1", "pod:v1"] {
            assert_eq!(
                client.call(image, "kind: ResourceList # confidential").await.code,
                Code::Ok,
                "{level}"
            );
        }
        assert_eq!(runner.terminate().await.code(), Some(0));
        assert!(!runner.log().contains("confidential"), "{}", runner.log());
        assert_eq!(runner.log().is_empty(), level < 2, "{}", runner.log());
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_taken_port_is_told() {
    let sandbox = Sandbox::new();
    let runner = sandbox.server("porch-fn-runner", [""; 0]).await;
    let port = format!("--port={}", runner.address().port());
    let args = ["--address=127.0.0.1", "--admin-port=0", "--log-level=0", &port];
    let ended = sandbox.run(binary("porch-fn-runner"), args, b"").await;
    assert_eq!(ended.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(
        stderr.starts_with("porch-fn-runner: cannot listen on ") && stderr.ends_with("; see --port\n"),
        "{stderr}"
    );
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_finishes_calls_and_leaves_no_pod() {
    let sandbox = Sandbox::new();
    let mut flags = both_runtimes(&sandbox);
    let gated = "touch $TMPDIR/$1; until [ -e $TMPDIR/go ]; do sleep 0.01; done; exec cat";
    sandbox.script("gated", gated);
    sandbox.script("functions/f", "exec $TMPDIR/gated exec-started");
    let gated = sandbox.path("gated");
    let local = format!("functions: [{{image: 'pod:v1', command: ['{}', pod-started]}}]", gated.display());
    sandbox.write("pods.yaml", local);
    flags.push("--drain-delay=100ms".into());
    let mut runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());
    let stopped = async {
        sandbox.appears("exec-started").await;
        sandbox.appears("pod-started").await;
        assert_eq!(runner.page("/readyz").await.0, 200);
        runner.signal(Signal::TERM);
        eventually("it is not ready", async || {
            // The admin port stays to the end.
            (runner.page("/readyz").await == (503, "starting or draining\n".into())).then_some(())
        })
        .await;
        eventually("the port is closed", async || {
            TcpStream::connect(runner.address()).await.is_err().then_some(())
        })
        .await;
        assert_eq!(runner.page("/healthz").await.0, 200);
        sandbox.write("go", "");
    };
    let (exec, pod, ()) = tokio::join!(client.call("exec:v1", INPUT), client.call("pod:v1", INPUT), stopped);
    assert_eq!((exec.output(), pod.output()), (&INPUT.into(), &INPUT.into()));
    assert_eq!(runner.ended().await.code(), Some(0));
    assert_eq!(sandbox.descendants(), []);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn local_pods_end_with_a_runner_that_is_killed() {
    let sandbox = Sandbox::new();
    sandbox.write("slow.sh", "touch $TMPDIR/started; sleep 1000 & wait");
    let flags = both_runtimes(&sandbox);
    let slow = sandbox.path("slow.sh");
    sandbox
        .write("pods.yaml", format!("functions: [{{image: 'pod:v1', command: [sh, '{}']}}]", slow.display()));
    let mut runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());
    let killed = async {
        sandbox.appears("started").await;
        assert_eq!(sandbox.descendants_with("wrapper-server").len(), 2, "the runner names it too");
        runner.signal(Signal::KILL);
        runner.ended().await
    };
    let (answer, status) = tokio::join!(client.try_call("pod:v1", INPUT, Some(PATIENCE)), killed);
    assert!(answer.is_err() && !status.success(), "{answer:?}");
    // Wrapper, function and the function's child.
    sandbox.gone("").await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_admin_port_counts_calls_by_runtime_and_code() {
    let sandbox = Sandbox::new();
    let runner = sandbox.server("porch-fn-runner", both_runtimes(&sandbox)).await;
    let client = Client::new(runner.address());
    for image in ["exec:v1", "pod:v1", "pod:v1", "none:v1"] {
        client.call(image, INPUT).await;
    }
    let (status, metrics) = runner.page("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "porch_fn_runner_calls_total{runtime=\"Exec\",code=\"OK\"} 1",
        "porch_fn_runner_calls_total{runtime=\"Pod\",code=\"OK\"} 2",
        "porch_fn_runner_calls_total{runtime=\"None\",code=\"NOT_FOUND\"} 1",
        "porch_fn_runner_pool_actions_total{action=\"create\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
}
