//! What the log says of where calls go.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server, eventually, flag};
use rustix::process::Signal;

const IMAGE: &str = "example.com/functions/echo:v1";
const INPUT: &str = "kind: ResourceList\n";

async fn start_runner(sandbox: &Sandbox) -> Server {
    let flags = [
        "--address=127.0.0.1".into(),
        "--disable-runtimes=pod".into(),
        flag("config", sandbox.path("exec.yaml")),
        flag("functions", sandbox.path("functions")),
    ];
    sandbox.server("porch-fn-runner", flags).await
}

/// The lines of attempts, from the image on and without the time they took.
fn attempts(log: &str) -> Vec<&str> {
    let attempt = |line| Some(str::split_once(line, "attempt ended image=")?.1.split_once(" took=")?.0);
    log.lines().filter_map(attempt).collect()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn at_level_4_each_attempt_is_a_line_that_says_where_why_and_how_it_ended() {
    let sandbox = Sandbox::new();
    sandbox.script("functions/echo", "exec cat");
    sandbox.write("exec.yaml", format!("functions: [{{function: echo, images: ['{IMAGE}']}}]"));
    let mut runners = [start_runner(&sandbox).await, start_runner(&sandbox).await];
    let target = format!("static:///{},{}", runners[0].address(), runners[1].address());
    let router = async |level: &str| {
        let flags = ["--address=127.0.0.1".into(), flag("runners", &target), flag("log-level", level)];
        let router = sandbox.server("porch-fn-router", flags).await;
        router.until_well().await;
        router
    };
    let (quiet, detailed) = (router("2").await, router("4").await);
    let call = async |router: &Server| {
        assert_eq!(Client::new(router.address()).call(IMAGE, INPUT).await.output(), INPUT);
        router.log()
    };
    let line = |runner: &Server, why: &str| {
        let runner = runner.address();
        format!("{IMAGE:?} runner={runner} why={why:?} attempt=1 outcome=\"answered\" code=\"OK\"")
    };
    let log = call(&detailed).await;
    let owner = runners.iter().position(|runner| attempts(&log) == [line(runner, "owner")]).expect(&log);
    runners[owner].signal(Signal::KILL);
    runners[owner].ended().await;
    eventually("the router knows", async || detailed.log().contains("runner is unavailable").then_some(()))
        .await;
    let log = call(&detailed).await;
    assert_eq!(attempts(&log)[1..], [line(&runners[1 - owner], "owner unhealthy")]);
    assert_eq!(attempts(&call(&quiet).await), [""; 0]);
}
