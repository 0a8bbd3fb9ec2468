//! Tests of the wrapper-server that need a separate process: signals, exit codes and standard
//! input.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server};
use rustix::process::Signal;

use super::INPUT;

const IMAGE: &str = "example.com/functions/set-image:v1";
/// A function that never ends, and whose child never ends either.
const ENDLESS: &str = "sleep 1000 & touch started; wait";

async fn start(sandbox: &Sandbox, flags: &[&str], script: &str) -> (Server, Client) {
    let server = sandbox.server("wrapper-server", [flags, &["--", "sh", "-c", script]].concat()).await;
    let client = Client::new(server.address());
    (server, client)
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_lets_the_call_in_flight_finish() {
    let sandbox = Sandbox::new();
    let gated = "touch started; until [ -e go ]; do sleep 0.01; done; cat";
    let (mut wrapper, client) = start(&sandbox, &[], gated).await;
    let stopped = async {
        sandbox.wait_file("started").await;
        wrapper.signal(Signal::TERM);
        wrapper.wait_port_closed().await;
        sandbox.write("go", "");
    };
    let (answer, ()) = tokio::join!(client.call(IMAGE, INPUT), stopped);
    assert_eq!(answer.output(), INPUT.as_bytes());
    assert_eq!(wrapper.wait_exit().await.code(), Some(0));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sigterm_ends_an_idle_server_at_once_and_closed_stdin_does_not_by_default() {
    for flags in [&["--drain-timeout=1h"][..], &["--drain-timeout=1h", "--exit-with-stdin"]] {
        let sandbox = Sandbox::new();
        let (mut wrapper, client) = start(&sandbox, flags, "cat").await;
        // In a pod on Kubernetes, standard input is closed. Only --exit-with-stdin needs it open.
        if flags.len() == 1 {
            wrapper.close_stdin();
        }
        // The client's connection is still open and idle when the server ends.
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        assert_eq!(wrapper.terminate().await.code(), Some(0));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_function_that_does_not_end_is_killed_with_its_process_group() {
    for (flag, by_stdin) in [("--drain-timeout=200ms", false), ("--exit-with-stdin", true)] {
        let sandbox = Sandbox::new();
        let (mut wrapper, client) = start(&sandbox, &[flag], ENDLESS).await;
        let stopped = async {
            sandbox.wait_file("started").await;
            if by_stdin {
                wrapper.close_stdin();
            } else {
                wrapper.signal(Signal::TERM);
            }
            wrapper.wait_exit().await
        };
        let (answer, status) = tokio::join!(client.try_call(IMAGE, INPUT, None), stopped);
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(status.code(), Some(0));
        sandbox.wait_no_process("").await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_runner_of_the_version_before_may_start_it() {
    let sandbox = Sandbox::new();
    // Such a runner sets one of the two.
    let args = ["--prestart", "--", "cat"];
    let wrapper =
        sandbox.server_with("wrapper-server", args, |command| _ = command.env("PORCH_FN_PRESTART", "true"));
    let wrapper = wrapper.await;
    assert_eq!(Client::new(wrapper.address()).call(IMAGE, INPUT).await.output(), INPUT);
    wrapper.wait_log("flags=\"--prestart\"").await;
    wrapper.wait_log("the variable PORCH_FN_PRESTART has no effect any more").await;
}
