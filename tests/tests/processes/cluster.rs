//! Three runners and a router, each a process. Callers notice nothing when a runner is killed or
//! replaced. A runner that hangs and a router that is stopped are tested with fake runners.

use std::time::Duration;

use porch_fn_image::shard_key;
use porch_fn_ring::Ring;
use porch_fn_tests::client::Client;
use porch_fn_tests::fleet::PREFIX;
use porch_fn_tests::load::{Load, Report};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, flag};
use serde_json::Value;
use tokio::time::Instant;

use super::INPUT;

const CALLERS: usize = 64;
const WELL: [&str; 3] = ["healthy"; 3];

struct Cluster {
    sandbox: Sandbox,
    images: Vec<String>,
    /// Calls of these images end only after a file `go` exists.
    gated: Vec<String>,
    runners: Vec<Server>,
    router: Server,
}

impl Cluster {
    /// Each runner's function writes the runner's port to the log.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let images: Vec<_> = (0..200).map(|number| format!("function-{number}:v1")).collect();
        // Enough images that each runner owns some.
        let gated: Vec<_> = (0..40).map(|number| format!("gated-{number}:v1")).collect();
        let gate = "touch $TMPDIR/gated.$$; until [ -e $TMPDIR/go ]; do sleep 0.02; done; exec cat";
        sandbox.executables(&[(&images.join(","), "echo $RUNNER >&2; exec cat"), (&gated.join(","), gate)]);
        let mut runners = Vec::new();
        for number in 0..3 {
            runners.push(start_runner(&sandbox, number, 0).await);
        }
        let router = start_router(&sandbox, &runners).await;
        Self { sandbox, images, gated, runners, router }
    }

    /// Calls these images one after the other. Returns the number of the runner that answered each
    /// call.
    async fn answering(&self, router: &Server, images: &[String]) -> Vec<usize> {
        let client = Client::new(router.address());
        let mut answering = Vec::new();
        for image in images {
            let answer = client.call(image, INPUT).await;
            assert_eq!(answer.output(), INPUT);
            answering.push(answer.log().trim().parse().unwrap());
        }
        answering
    }

    /// The number of the runner that owns each of these images in the ring.
    fn owners_of(&self, images: &[String]) -> Vec<usize> {
        let names: Vec<_> = self.runners.iter().map(|runner| runner.address().to_string()).collect();
        let ring = Ring::new(names.clone());
        let owner = |image: &String| {
            let owner = ring.owner(&shard_key(image, "", PREFIX)).unwrap().to_string();
            names.iter().position(|name| *name == owner).unwrap()
        };
        images.iter().map(owner).collect()
    }

    /// The runners' entries on a router's `/shards` page, ordered by runner number.
    async fn shards(&self, router: &Server) -> Vec<Value> {
        let page = router.json("/shards").await;
        let shards = page["shards"].as_array().unwrap();
        let of = |runner: &Server| {
            let address = runner.address().to_string();
            shards.iter().find(|shard| shard["address"] == *address).unwrap().clone()
        };
        self.runners.iter().map(of).collect()
    }

    /// Waits until the runners are in these states.
    async fn until(&self, states: [&str; 3]) {
        eventually(&format!("states {states:?}"), async || {
            self.shards(&self.router).await.iter().map(|shard| &shard["state"]).eq(&states).then_some(())
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

async fn start_router(sandbox: &Sandbox, runners: &[Server]) -> Server {
    sandbox.router(&runners.iter().collect::<Vec<_>>(), &["--drain-delay=200ms"]).await
}

fn show(what: &str, report: &Report) {
    figure(&format!(
        "{what}: {} calls, {:?} failed, slowest {:.3?}",
        report.succeeded, report.failed, report.slowest
    ));
    report.all_succeeded();
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_killed_runner_costs_no_call_and_gets_its_images_back_after_the_cooldown() {
    let mut cluster = Cluster::start().await;
    let owners = cluster.owners_of(&cluster.images);
    let load = cluster.load();
    load.goes_on(500).await;
    // The load may have no call on the runner when it is killed; this call certainly runs there.
    let client = Client::new(cluster.router.address());
    let gated = cluster.owners_of(&cluster.gated).iter().position(|owner| *owner == 1).unwrap();
    let gated = cluster.gated[gated].clone();
    let killed = async {
        cluster.sandbox.until_files("gated.", 1).await;
        cluster.runners[1].kill().await;
        load.goes_on(1000).await;
        cluster.sandbox.write("go", "");
    };
    let (answer, ()) = tokio::join!(client.call(&gated, INPUT), killed);
    assert_eq!(answer.output(), INPUT);
    let report = load.stop().await;
    let broken =
        cluster.router.metric("porch_fn_router_attempts_total{outcome=\"Broken\"}").await.unwrap_or(0);
    show(&format!("kill -9 of one of three runners under 64 callers, {broken} of them on it"), &report);
    assert!(broken > 0, "the call that was on it was not sent again");

    cluster.until(["healthy", "unreachable", "healthy"]).await;
    let without = cluster.answering(&cluster.router, &cluster.images).await;
    for (owner, now) in owners.iter().zip(&without) {
        assert!(if *owner == 1 { *now != 1 } else { now == owner }, "{owner} to {now}");
    }

    // Call only some of the runner's images, so that all calls are made before the cooldown ends.
    let back = Instant::now();
    cluster.restart(1).await;
    cluster.until(["healthy", "cooling_down", "healthy"]).await;
    let of_it: Vec<_> = (0..owners.len()).filter(|&image| owners[image] == 1).take(20).collect();
    let images: Vec<_> = of_it.iter().map(|&image| cluster.images[image].clone()).collect();
    let others: Vec<_> = of_it.iter().map(|&image| without[image]).collect();
    assert_eq!(cluster.answering(&cluster.router, &images).await, others);
    cluster.until(WELL).await;
    figure(&format!("a runner that came back has its images again after {:.1?}", back.elapsed()));
    assert!(back.elapsed() >= Duration::from_secs(30), "{:?}", back.elapsed());
    assert_eq!(cluster.answering(&cluster.router, &cluster.images).await, owners);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_rolling_restart_under_load_costs_no_call() {
    let mut cluster = Cluster::start().await;
    let load = cluster.load();
    for number in 0..3 {
        load.goes_on(300).await;
        assert_eq!(cluster.runners[number].terminate().await.code(), Some(0));
        load.goes_on(300).await;
        cluster.restart(number).await;
        eventually("it is back", async || {
            (cluster.shards(&cluster.router).await[number]["state"] == "cooling_down").then_some(())
        })
        .await;
    }
    load.goes_on(300).await;
    show("SIGTERM of three of three runners, one after the other, under 64 callers", &load.stop().await);
}
