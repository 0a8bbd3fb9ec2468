//! What only a process of its own shows of the wrapper-server: its signals, exit codes and standard input.

use std::path::Path;
use std::time::Duration;

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::Instant;

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n";

/// A function that says where it is: `started` and, once `go` is there, an answer.
const GATED: &str = "touch started; until [ -e go ]; do sleep 0.01; done; cat";

async fn process(sandbox: &Sandbox, flags: &[&str], script: &str) -> Server {
    sandbox.server("wrapper-server", [flags, &["--", "sh", "-c", script]].concat()).await
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn without_an_entrypoint_it_says_how_it_is_used() {
    let sandbox = Sandbox::new();
    for args in [&["--port=0"][..], &["--port=0", "--"], &[]] {
        let ended = sandbox.run(binary("wrapper-server"), args, b"").await;
        assert_eq!(ended.status.code(), Some(64));
        assert_eq!(
            String::from_utf8_lossy(&ended.stderr),
            "wrapper-server: <ENTRYPOINT>... must be set; usage: wrapper-server [FLAGS] -- ENTRYPOINT [ARG...]\n"
        );
        assert!(ended.stdout.is_empty());
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_lets_the_call_in_flight_finish() {
    let sandbox = Sandbox::new();
    let mut wrapper = process(&sandbox, &[], GATED).await;
    let client = Client::new(wrapper.address());
    let stopped = async {
        sandbox.appears("started").await;
        wrapper.signal(Signal::TERM);
        // It takes no new connections from now on.
        eventually("the port is closed", async || refuses(&wrapper).await.then_some(())).await;
        sandbox.write("go", "");
    };
    let (answer, ()) = tokio::join!(client.call(IMAGE, INPUT), stopped);
    assert_eq!(answer.output(), INPUT.as_bytes());
    assert_eq!(wrapper.ended().await.code(), Some(0));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_ends_an_idle_one_at_once() {
    // Half of the time that it gives to what does not end. A busy machine may need as long at times.
    const AT_ONCE: Duration = Duration::from_millis(500);
    for flags in [&[][..], &["--exit-with-stdin"]] {
        let mut took = Vec::new();
        while took.iter().all(|took| *took >= AT_ONCE) {
            assert!(took.len() < 6, "{took:?}");
            let sandbox = Sandbox::new();
            let mut wrapper = process(&sandbox, flags, "cat").await;
            let client = Client::new(wrapper.address());
            // An idle connection does not hold it up.
            client.call(IMAGE, INPUT).await.output();
            let began = Instant::now();
            assert_eq!(wrapper.terminate().await.code(), Some(0));
            took.push(began.elapsed());
        }
        figure(&format!("an idle wrapper-server {flags:?} ends {took:.3?} after SIGTERM"));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_past_the_drain_timeout_ends_the_process_group() {
    let sandbox = Sandbox::new();
    let script = "sleep 1000 & touch started; wait";
    let mut wrapper = process(&sandbox, &["--drain-timeout=200ms"], script).await;
    let client = Client::new(wrapper.address());
    let stopped = async {
        sandbox.appears("started").await;
        wrapper.terminate().await
    };
    let (answer, status) = tokio::join!(client.try_call(IMAGE, INPUT, None), stopped);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(status.code(), Some(0));
    sandbox.gone("").await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn closed_stdin_ends_it_and_the_process_group_where_told_to() {
    let sandbox = Sandbox::new();
    let mut wrapper = process(&sandbox, &["--exit-with-stdin"], "sleep 1000 & touch started; wait").await;
    let client = Client::new(wrapper.address());
    let stopped = async {
        sandbox.appears("started").await;
        wrapper.close_stdin();
        wrapper.ended().await
    };
    let (answer, status) = tokio::join!(client.try_call(IMAGE, INPUT, None), stopped);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(status.code(), Some(0));
    sandbox.gone("").await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn closed_stdin_means_nothing_in_a_pod() {
    let sandbox = Sandbox::new();
    let mut wrapper = process(&sandbox, &[], "cat").await;
    wrapper.close_stdin();
    assert_eq!(Client::new(wrapper.address()).call(IMAGE, INPUT).await.output(), INPUT.as_bytes());
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_entrypoint_is_looked_up_on_path() {
    // The catalog's images have a bare `function` for an entry point.
    let sandbox = Sandbox::new();
    sandbox.script("bin/function", "echo \"from $0 with $*\" >&2; exec cat");
    let path =
        std::env::join_paths([sandbox.path("bin"), Path::new("/usr/bin").into(), Path::new("/bin").into()]);
    let args = ["--", "function", "--mode", "x"];
    let with_path = |command: &mut Command| {
        command.env("PATH", path.unwrap());
    };
    let wrapper = sandbox.server_with("wrapper-server", args, with_path).await;
    let answer = Client::new(wrapper.address()).call(IMAGE, INPUT).await;
    assert_eq!(answer.output(), INPUT.as_bytes());
    let script = sandbox.path("bin/function");
    assert_eq!(answer.log(), format!("from {} with --mode x\n", script.display()));
}

async fn refuses(server: &Server) -> bool {
    tokio::net::TcpStream::connect(server.address()).await.is_err()
}
