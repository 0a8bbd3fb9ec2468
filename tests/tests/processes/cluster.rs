//! Three runners and a router, each a process. No call fails when a runner is killed or restarted.

use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, flag};
use serde_json::Value;
use tokio::time::Instant;

use super::INPUT;

const CALLERS: usize = 64;
const HEALTHY: [&str; 3] = ["healthy"; 3];

struct Cluster {
    sandbox: Sandbox,
    images: Vec<String>,
    /// Runner 1 never answers calls of these images.
    held: Vec<String>,
    runners: Vec<Server>,
    router: Server,
}

impl Cluster {
    /// Starts three runners and a router. Each function logs the number of its runner.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let images: Vec<_> = (0..200).map(|number| format!("function-{number}:v1")).collect();
        // Enough images that each runner owns some.
        let held: Vec<_> = (0..40).map(|number| format!("held-{number}:v1")).collect();
        let hold = "[ $RUNNER = 1 ] || exec cat; touch $TMPDIR/held.$$; exec sleep 1000";
        sandbox.executables(&[(&images.join(","), "echo $RUNNER >&2; exec cat"), (&held.join(","), hold)]);
        let mut runners = Vec::new();
        for number in 0..3 {
            runners.push(start_runner(&sandbox, number, 0).await);
        }
        let router = sandbox.router(&runners.iter().collect::<Vec<_>>(), &["--drain-delay=200ms"]).await;
        Self { sandbox, images, held, runners, router }
    }

    /// Calls these images one after the other. Returns the number of the runner that answered each
    /// call.
    async fn call_each(&self, images: &[String]) -> Vec<usize> {
        let client = Client::new(self.router.address());
        let mut runners = Vec::new();
        for image in images {
            let answer = client.call(image, INPUT).await;
            assert_eq!(answer.output(), INPUT);
            runners.push(answer.log().trim().parse().unwrap());
        }
        runners
    }

    /// The runners' entries on the router's `/shards` page, ordered by runner number.
    async fn shards(&self) -> Vec<Value> {
        let page = self.router.json("/shards").await;
        let shards = page["shards"].as_array().unwrap();
        let of = |runner: &Server| {
            let address = runner.address().to_string();
            shards.iter().find(|shard| shard["address"] == *address).unwrap().clone()
        };
        self.runners.iter().map(of).collect()
    }

    async fn wait_states(&self, states: [&str; 3]) {
        eventually(&format!("states {states:?}"), async || {
            self.shards().await.iter().map(|shard| &shard["state"]).eq(&states).then_some(())
        })
        .await;
    }

    /// Restarts a runner that has ended, on the same port.
    async fn restart(&mut self, number: usize) {
        let port = self.runners[number].address().port();
        self.runners[number] = start_runner(&self.sandbox, number, port).await;
    }

    fn load(&self) -> Load {
        Load::start(self.router.address(), CALLERS, &self.images)
    }
}

/// Each runner has its own address, so that no other process takes the port of a stopped runner.
async fn start_runner(sandbox: &Sandbox, number: usize, port: u16) -> Server {
    let args = [
        flag("address", format!("127.0.0.{}", 2 + number)),
        flag("port", port.to_string()),
        flag("functions", sandbox.path("functions")),
        flag("config", sandbox.path("exec.yaml")),
        "--exec-env=RUNNER".into(),
        "--max-parallel-executions=64".into(),
        "--log-level=1".into(),
    ];
    sandbox
        .server_with("porch-fn-runner", args, |command| _ = command.env("RUNNER", number.to_string()))
        .await
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_call_fails_when_a_runner_is_killed_and_it_owns_its_images_again_after_the_cooldown() {
    let mut cluster = Cluster::start().await;
    // All runners are healthy, so each image is on its owner.
    let owners = cluster.call_each(&cluster.images).await;
    let load = cluster.load();
    load.wait_answers(500).await;
    // When runner 1 is killed, the load may have no call on it. At least one of these calls then
    // runs on it.
    let client = Client::new(cluster.router.address());
    let held = join_all(cluster.held.iter().map(|image| client.call(image, INPUT)));
    let killed = async {
        cluster.sandbox.wait_files("held.", 1).await;
        cluster.runners[1].kill().await;
        load.wait_answers(1000).await;
    };
    let (answers, ()) = tokio::join!(held, killed);
    for answer in answers {
        assert_eq!(answer.output(), INPUT);
    }
    let report = load.stop().await;
    let broken =
        cluster.router.metric("porch_fn_router_attempts_total{outcome=\"Broken\"}").await.unwrap_or(0);
    figure(&format!("SIGKILL of one of three runners under 64 callers, {broken} lost attempts: {report}"));
    report.assert_all_succeeded();
    assert!(broken > 0, "the killed runner lost no call");

    cluster.wait_states(["healthy", "unreachable", "healthy"]).await;
    let without = cluster.call_each(&cluster.images).await;
    for (owner, now) in owners.iter().zip(&without) {
        assert!(if *owner == 1 { *now != 1 } else { now == owner }, "{owner} to {now}");
    }

    // Call only some of the runner's images, so that all calls end before the runner is healthy.
    let back = Instant::now();
    cluster.restart(1).await;
    cluster.wait_states(["healthy", "cooling_down", "healthy"]).await;
    let owned: Vec<_> = (0..owners.len()).filter(|&image| owners[image] == 1).take(20).collect();
    let images: Vec<_> = owned.iter().map(|&image| cluster.images[image].clone()).collect();
    let others: Vec<_> = owned.iter().map(|&image| without[image]).collect();
    assert_eq!(cluster.call_each(&images).await, others);
    cluster.wait_states(HEALTHY).await;
    figure(&format!("a restarted runner owns its images again after {:.1?}", back.elapsed()));
    assert!(back.elapsed() >= Duration::from_secs(30), "{:?}", back.elapsed());
    assert_eq!(cluster.call_each(&cluster.images).await, owners);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_call_fails_during_a_rolling_restart_of_the_runners() {
    let mut cluster = Cluster::start().await;
    let load = cluster.load();
    for number in 0..3 {
        load.wait_answers(300).await;
        assert_eq!(cluster.runners[number].terminate().await.code(), Some(0));
        load.wait_answers(300).await;
        cluster.restart(number).await;
        eventually("the runner is reachable", async || {
            (cluster.shards().await[number]["state"] == "cooling_down").then_some(())
        })
        .await;
    }
    load.wait_answers(300).await;
    let report = load.stop().await;
    figure(&format!("rolling restart of three runners under 64 callers: {report}"));
    report.assert_all_succeeded();
}
