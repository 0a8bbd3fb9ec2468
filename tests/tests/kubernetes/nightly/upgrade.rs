//! Programs of this version work with programs of the previous version, and an upgrade fails no
//! call. `tests/nightly/upgrade` builds the previous version and passes its folder in
//! `PORCH_FN_TEST_BEFORE_DIR`.

mod rolling;

use std::fs;
use std::path::{Path, PathBuf};

use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, binary, figure, flag};
use serde_json::json;

use crate::rig::INPUT;

/// The addresses of the runners.
const PEERS: &str = "static:///127.0.9.1:9445,127.0.9.2:9445";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Before,
    This,
}

use Version::{Before, This};

// === impl Version ===

impl Version {
    fn program(self, name: &str) -> PathBuf {
        match self {
            Before => before().join(name),
            This => binary(name),
        }
    }
}

/// The directory with the previous version's programs.
fn before() -> PathBuf {
    let directory = std::env::var_os("PORCH_FN_TEST_BEFORE_DIR");
    directory.expect("PORCH_FN_TEST_BEFORE_DIR is not set: use tests/nightly/upgrade").into()
}

/// A router and two runners with local pods.
struct Trial {
    images: Vec<String>,
    runners: Vec<Server>,
    router: Server,
    sandbox: Sandbox,
    runner: PathBuf,
    wrapper: PathBuf,
}

// === impl Trial ===

impl Trial {
    async fn start(router: Version, runner: Version, wrapper: Version) -> Self {
        let sandbox = Sandbox::new();
        let images: Vec<_> = (0..8).map(|number| format!("function-{number}:v1")).collect();
        let cat = sandbox.script("cat", "exec cat");
        let fails = sandbox.script("fails", "cat >&2; echo ' is refused' >&2; exit 3");
        let mut functions: Vec<_> =
            images.iter().map(|image| json!({"image": image, "command": [cat]})).collect();
        functions.push(json!({"image": "fails:v1", "command": [fails]}));
        sandbox.write("functions.yaml", json!({"functions": functions}).to_string());
        let router = router.program("porch-fn-router");
        let (runner, wrapper) = (runner.program("porch-fn-runner"), wrapper.program("wrapper-server"));
        let started = [1, 2].map(|number| start_runner(&sandbox, &runner, &wrapper, number));
        let runners = futures_util::future::join_all(started).await;
        let router = sandbox.server(router.to_str().unwrap(), [flag("runners", PEERS)]).await;
        Self { images, runners, router, sandbox, runner, wrapper }
    }

    /// The answers to five calls: short input, long input, a function that fails, a function that
    /// does not exist, and an expired deadline.
    async fn answers(&self) -> Vec<Answer> {
        let client = Client::new(self.router.address());
        let long = format!("{INPUT}# {}\n", "x".repeat(5 << 20));
        let short = std::time::Duration::ZERO;
        vec![
            client.call(&self.images[0], INPUT).await,
            client.call(&self.images[1], long).await,
            client.call("fails:v1", INPUT).await,
            client.call("nobody/has/this:v1", INPUT).await,
            client.call_within(&self.images[2], INPUT, short).await,
        ]
    }

    /// Stops and restarts one runner after the other under load. Returns the number of calls.
    async fn runners_restarted(&mut self) -> usize {
        let load = Load::start(self.router.address(), 16, &self.images);
        for number in 0..2 {
            load.wait_answers(200).await;
            assert!(self.runners[number].terminate().await.success());
            load.wait_answers(200).await;
            let restarted = start_runner(&self.sandbox, &self.runner, &self.wrapper, number + 1);
            self.runners[number] = restarted.await;
        }
        load.wait_answers(200).await;
        let report = load.stop().await;
        report.assert_all_succeeded();
        report.succeeded
    }
}

async fn start_runner(sandbox: &Sandbox, program: &Path, wrapper: &Path, number: usize) -> Server {
    let flags = [
        flag("address", format!("127.0.9.{number}")),
        flag("port", "9445"),
        flag("peers", PEERS),
        flag("shard-address", format!("127.0.9.{number}:9445")),
        flag("pod-backend", "local"),
        flag("local-functions", sandbox.path("functions.yaml")),
        flag("wrapper-server", wrapper),
    ];
    sandbox.server(program.to_str().unwrap(), flags).await
}

#[tokio::test]
#[ignore = "needs the version before; tests/run nightly runs it"]
async fn each_program_works_with_programs_of_both_versions() {
    let mut expected = None;
    // Combines each version of the router with each of the runner, and each of the runner with each
    // of the wrapper-server.
    for (router, runner, wrapper) in
        [(Before, Before, This), (Before, This, Before), (This, Before, Before), (This, This, This)]
    {
        let combination = format!("router {router:?}, runner {runner:?}, wrapper {wrapper:?}");
        let mut trial = Trial::start(router, runner, wrapper).await;
        let answers = trial.answers().await;
        let calls = trial.runners_restarted().await;
        figure(&format!("{combination}: both runners restarted, 0 of {calls} calls failed"));
        assert_eq!(answers, *expected.get_or_insert(answers.clone()), "{combination}");
    }
}

/// Pushes an image with the previous router and runner, and one with the previous wrapper-server.
/// Returns both.
async fn push_before(cluster: &Cluster) -> (String, String) {
    let own = cluster.machine();
    let (programs, wrapper) = (Sandbox::new(), Sandbox::new());
    for name in ["porch-fn-router", "porch-fn-runner"] {
        fs::copy(before().join(name), programs.path(name)).unwrap();
    }
    fs::create_dir(wrapper.path("wrapper-server")).unwrap();
    fs::copy(before().join("wrapper-server"), wrapper.path("wrapper-server/wrapper-server")).unwrap();
    own.push("porch-fn:before", programs.directory(), "/porch-fn-runner").await;
    own.push("wrapper-server:before", wrapper.directory(), "/wrapper-server/wrapper-server").await;
    let image = |name: &str| format!("{}/{name}", cluster.registry());
    (image("porch-fn:before"), image("wrapper-server:before"))
}
