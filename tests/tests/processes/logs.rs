//! The router's log of its calls.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server};

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
        format!("{IMAGE:?} runner={runner} why={reason:?} attempt=1 outcome=\"answered\" code=\"OK\"")
    };
    let log = call(&detailed).await;
    let owner = runners.iter().position(|runner| attempts(&log) == [line(runner, "owner")]).expect(&log);
    runners[owner].kill().await;
    detailed.wait_log("runner is unavailable").await;
    let log = call(&detailed).await;
    assert_eq!(attempts(&log)[1..], [line(&runners[1 - owner], "owner unhealthy")]);
    assert_eq!(attempts(&call(&quiet).await), [""; 0]);
}
