//! Three runners and a router, each a process: who answers what, and what callers notice when one of them is
//! killed, stopped, hung or replaced. They must notice nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_image::shard_key;
use porch_fn_ring::{Identity, Ring};
use porch_fn_tests::client::Client;
use porch_fn_tests::load::{Load, Report};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, flag};
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;

const INPUT: &str = "kind: ResourceList\n";
const CALLERS: usize = 64;
const WELL: [&str; 3] = ["healthy"; 3];
const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

struct Cluster {
    sandbox: Sandbox,
    images: Vec<String>,
    /// Their calls end once there is a file `go`.
    gated: Vec<String>,
    runners: Vec<Server>,
    router: Server,
}

impl Cluster {
    /// Each runner's function writes the runner's number to the log.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let images: Vec<_> = (0..200).map(|number| format!("function-{number}:v1")).collect();
        // So many that each runner has some.
        let gated: Vec<_> = (0..40).map(|number| format!("gated-{number}:v1")).collect();
        let config = format!(
            "functions:\n- function: echo\n  images: ['{}']\n- function: gated\n  images: ['{}']\n",
            images.join("', '"),
            gated.join("', '")
        );
        sandbox.write("exec.yaml", config);
        let mut runners = Vec::new();
        for number in 0..3 {
            sandbox.script(&format!("{number}/echo"), &format!("echo {number} >&2; exec cat"));
            let gated = "touch $TMPDIR/gated.$$; until [ -e $TMPDIR/go ]; do sleep 0.02; done; exec cat";
            sandbox.script(&format!("{number}/gated"), gated);
            runners.push(start_runner(&sandbox, number, 0).await);
        }
        let addresses: Vec<_> = runners.iter().map(Server::address).collect();
        let router = start_router(&sandbox, &addresses).await;
        Self { sandbox, images, gated, runners, router }
    }

    /// Waits until so many gated calls run. One whose runner is lost runs twice.
    async fn gated_run(&self, calls: usize) {
        eventually(&format!("{calls} calls run"), async || {
            let files = std::fs::read_dir(self.sandbox.directory()).unwrap();
            let running = files.filter(|file| {
                file.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().starts_with("gated."))
            });
            (running.count() >= calls).then_some(())
        })
        .await;
    }

    /// The number of the runner that answers each image, in one call after the other. Nothing if the router lost a
    /// runner meanwhile, as it rightly does when a busy machine keeps one from answering for seconds.
    async fn try_answering(&self, router: &Server, images: &[String]) -> Option<Vec<usize>> {
        let client = Client::new(router.address());
        let before = self.shards(router).await;
        let mut answering = Vec::new();
        for image in images {
            let answer = client.call(image, INPUT).await;
            assert_eq!(answer.output(), INPUT);
            answering.push(answer.log().trim().parse().unwrap());
        }
        let after = self.shards(router).await;
        let quiet = |number: usize| {
            let calls = |shards: &[Value]| shards[number]["calls"].as_u64().unwrap() as usize;
            let answered = answering.iter().filter(|runner| **runner == number).count();
            ["state", "failures"].iter().all(|field| before[number][field] == after[number][field])
                && calls(&before) + answered == calls(&after)
        };
        (0..3).all(quiet).then_some(answering)
    }

    /// The same of all images while the runners are in these states.
    async fn answering(&self, router: &Server, states: [&str; 3]) -> Vec<usize> {
        for _ in 0..10 {
            eventually(&format!("states {states:?}"), async || {
                self.shards(router).await.iter().map(|shard| &shard["state"]).eq(&states).then_some(())
            })
            .await;
            if let Some(answering) = self.try_answering(router, &self.images).await {
                return answering;
            }
        }
        panic!("the router lost runners ten times");
    }

    /// The number of the runner that the ring gives each of these images.
    fn owners_of(&self, images: &[String]) -> Vec<usize> {
        let names: Vec<_> = self.runners.iter().map(|runner| runner.address().to_string()).collect();
        let ring = Ring::new(names.iter().map(|name| Identity::from(name.as_str()))).unwrap();
        let owner = |image: &String| {
            let owner = ring.owner(&shard_key(image, None, PREFIX)).unwrap().to_string();
            names.iter().position(|name| *name == owner).unwrap()
        };
        images.iter().map(owner).collect()
    }

    /// The runners as a router's `/shards` page has them, by their numbers.
    async fn shards(&self, router: &Server) -> Vec<Value> {
        let page = router.json("/shards").await;
        let shards = page["shards"].as_array().unwrap();
        let of = |runner: &Server| {
            let address = runner.address().to_string();
            shards.iter().find(|shard| shard["address"] == *address).unwrap().clone()
        };
        self.runners.iter().map(of).collect()
    }

    /// Waits until a runner is in this state.
    async fn until(&self, number: usize, state: &str) {
        eventually(&format!("runner {number} is {state}"), async || {
            (self.shards(&self.router).await[number]["state"] == state).then_some(())
        })
        .await;
    }

    fn load(&self) -> Load {
        Load::start(self.router.address(), CALLERS, &self.images)
    }
}

/// Runners have addresses of their own, so that the port of one that is down stays free for it.
async fn start_runner(sandbox: &Sandbox, number: usize, port: u16) -> Server {
    let args = [
        flag("address", format!("127.0.0.{}", 2 + number)),
        flag("port", port.to_string()),
        flag("functions", sandbox.path(&number.to_string())),
        flag("config", sandbox.path("exec.yaml")),
        "--max-parallel-executions=64".into(),
        "--log-level=1".into(),
    ];
    sandbox.server("porch-fn-runner", args).await
}

async fn start_router(sandbox: &Sandbox, runners: &[SocketAddr]) -> Server {
    let runners: Vec<_> = runners.iter().map(ToString::to_string).collect();
    let args = [flag("runners", format!("static:///{}", runners.join(","))), "--drain-delay=200ms".into()];
    let router = sandbox.server("porch-fn-router", args).await;
    router.until_well().await;
    router
}

/// Waits until the load has had that many more answers.
async fn more(load: &Load, calls: usize) {
    let enough = load.answered() + calls;
    eventually("the load goes on", async || (load.answered() >= enough).then_some(())).await;
}

fn show(what: &str, report: &Report) {
    figure(&format!(
        "{what}: {} calls, {:?} failed, slowest {:.3?}",
        report.succeeded, report.failed, report.slowest
    ));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn two_hundred_images_spread_and_each_stays_with_its_owner() {
    let cluster = Cluster::start().await;
    let owners = cluster.owners_of(&cluster.images);
    for _ in 0..3 {
        assert_eq!(cluster.answering(&cluster.router, WELL).await, owners);
    }
    // Another router, another process, the same answer.
    let addresses: Vec<_> = cluster.runners.iter().rev().map(Server::address).collect();
    let second = start_router(&cluster.sandbox, &addresses).await;
    assert_eq!(cluster.answering(&second, WELL).await, owners);

    let mut spread = BTreeMap::<_, usize>::new();
    for owner in &owners {
        *spread.entry(*owner).or_default() += 1;
    }
    figure(&format!("200 images over three runners: {:?}", spread.values().collect::<Vec<_>>()));
    assert!(spread.len() == 3 && spread.values().all(|&images| images >= 30), "{spread:?}");
    for (number, shard) in cluster.shards(&cluster.router).await.iter().enumerate() {
        assert_eq!(shard["owned"], spread[&number], "{shard}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_killed_runner_costs_no_call_and_gets_its_images_back_after_the_hold_down() {
    let mut cluster = Cluster::start().await;
    let owners = cluster.owners_of(&cluster.images);
    let load = cluster.load();
    more(&load, 500).await;
    // However few of the load's calls it has just then, this one is on it.
    let client = Client::new(cluster.router.address());
    let gated = cluster.owners_of(&cluster.gated).iter().position(|owner| *owner == 1).unwrap();
    let gated = cluster.gated[gated].clone();
    let killed = async {
        cluster.gated_run(1).await;
        cluster.runners[1].signal(Signal::KILL);
        cluster.runners[1].ended().await;
        more(&load, 1000).await;
        cluster.sandbox.write("go", "");
    };
    let (answer, ()) = tokio::join!(client.call(&gated, INPUT), killed);
    assert_eq!(answer.output(), INPUT);
    let report = load.stop().await;
    let broken =
        cluster.router.metric("porch_fn_router_attempts_total{outcome=\"Broken\"}").await.unwrap_or(0);
    show(&format!("kill -9 of one of three runners under 64 callers, {broken} of them on it"), &report);
    report.all_succeeded();
    assert!(broken > 0, "the call that was on it was not sent again");

    let without = cluster.answering(&cluster.router, ["healthy", "unreachable", "healthy"]).await;
    for (owner, now) in owners.iter().zip(&without) {
        assert!(if *owner == 1 { *now != 1 } else { now == owner }, "{owner} to {now}");
    }

    // Some of its images, so that all of these calls are made while it cools down.
    let of_it = || (0..owners.len()).filter(|&image| owners[image] == 1).take(20);
    let images: Vec<_> = of_it().map(|image| cluster.images[image].clone()).collect();
    let without: Vec<_> = of_it().map(|image| without[image]).collect();
    let mut tries = 0;
    let back = loop {
        let back = Instant::now();
        let port = cluster.runners[1].address().port();
        cluster.runners[1] = start_runner(&cluster.sandbox, 1, port).await;
        cluster.until(1, "cooling_down").await;
        if let Some(answering) = cluster.try_answering(&cluster.router, &images).await {
            assert_eq!(answering, without);
            break back;
        }
        tries += 1;
        assert!(tries < 10, "the router lost runners ten times");
        cluster.runners[1].signal(Signal::KILL);
        cluster.runners[1].ended().await;
        cluster.until(1, "unreachable").await;
    };
    cluster.until(1, "healthy").await;
    figure(&format!("a runner that came back has its images again after {:.1?}", back.elapsed()));
    assert!(back.elapsed() >= Duration::from_secs(30), "{:?}", back.elapsed());
    assert_eq!(cluster.answering(&cluster.router, WELL).await, owners);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_rolling_restart_under_load_costs_no_call() {
    let mut cluster = Cluster::start().await;
    let load = cluster.load();
    for number in 0..3 {
        more(&load, 300).await;
        let port = cluster.runners[number].address().port();
        assert_eq!(cluster.runners[number].terminate().await.code(), Some(0));
        more(&load, 300).await;
        cluster.runners[number] = start_runner(&cluster.sandbox, number, port).await;
        cluster.until(number, "cooling_down").await;
    }
    more(&load, 300).await;
    let report = load.stop().await;
    show("SIGTERM of three of three runners, one after the other, under 64 callers", &report);
    report.all_succeeded();
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hung_runner_costs_seconds_and_no_call() {
    let cluster = Cluster::start().await;
    let load = cluster.load();
    more(&load, 300).await;
    cluster.runners[2].signal(Signal::STOP);
    more(&load, 1000).await;
    let report = load.stop().await;
    cluster.until(2, "unreachable").await;
    cluster.runners[2].signal(Signal::CONT);
    show("SIGSTOP of one of three runners under 64 callers", &report);
    report.all_succeeded();
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_router_that_is_stopped_finishes_its_calls() {
    let mut cluster = Cluster::start().await;
    let client = Client::new(cluster.router.address());
    let calls = join_all(cluster.gated.iter().cycle().take(CALLERS).map(|image| client.call(image, INPUT)));
    let stopped = async {
        cluster.gated_run(CALLERS).await;
        cluster.router.signal(Signal::TERM);
        eventually("the router takes no more", async || {
            TcpStream::connect(cluster.router.address()).await.is_err().then_some(())
        })
        .await;
        cluster.sandbox.write("go", "");
    };
    let (answers, ()) = tokio::join!(calls, stopped);
    for answer in answers {
        assert_eq!(answer.output(), INPUT);
    }
    assert_eq!(cluster.router.ended().await.code(), Some(0));
}
