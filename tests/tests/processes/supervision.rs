//! A server does not continue after one of its tasks has panicked. The process drains, logs the
//! task's name, and exits with code 1. In debug builds, the environment variable
//! `PORCH_FN_TEST_PANIC` names a task and a file. The task panics as soon as the file exists.

use std::ffi::OsString;
use std::fs;

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, flag};
use porch_fn_tests::registry::Authority;

use super::INPUT;

const IMAGE: &str = "example.com/functions/gated:v1";
const NAME: &str = "runners.test.svc";

struct Setup {
    sandbox: Sandbox,
    runner: Vec<OsString>,
}

impl Setup {
    /// Creates a certificate, and a function that ends only after a file `go` exists.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let gated = "touch $TMPDIR/runs; until [ -e $TMPDIR/go ]; do sleep 0.02; done; exec cat";
        let mut runner = sandbox.executables(&[(IMAGE, gated)]);
        runner.extend(sandbox.local_pods(&[]));
        let more = ["--shard-address=127.0.0.1:1", "--peers=static:///127.0.0.1:1", "--drain-delay=0s"];
        runner.extend(more.map(Into::into));
        let authority = Authority::create(&sandbox, "authority").await;
        authority.issue(&sandbox, "own", &format!("DNS:{NAME}"), 2).await;
        Self { sandbox, runner }
    }

    /// Makes this task of `program` panic during a call, and asserts that the call is answered and
    /// the process ends.
    async fn assert_panic_ends(&self, program: &str, task: &str, logged: &str, flags: &[OsString]) {
        for file in ["runs", "go", "panic"] {
            let _ = fs::remove_file(self.sandbox.path(file));
        }
        let asked = format!("{task}@{}", self.sandbox.path("panic").display());
        let mut server = self
            .sandbox
            .server_with(program, flags, |command| _ = command.env("PORCH_FN_TEST_PANIC", asked))
            .await;
        let client = Client::new(server.address());
        let call = tokio::spawn(async move { client.try_call(IMAGE, INPUT, None).await });
        self.sandbox.wait_file("runs").await;
        self.sandbox.write("panic", "");
        server.wait_log(&format!("task \"{logged}\" panicked (a test asked for it)")).await;
        self.sandbox.write("go", "");
        let answer = call.await.unwrap();
        // If the listener's task panics, the caller's connection is lost and gets no answer.
        if task != "serve" {
            assert_eq!(answer.unwrap().output(), INPUT, "{program}: {task}");
        }
        assert_eq!(server.wait_exit().await.code(), Some(1), "{program}: {task}");
        assert!(server.log().contains("panicked at="), "the log has no source location: {}", server.log());
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_panic_of_any_task_ends_the_router() {
    let setup = Setup::start().await;
    let tls = setup.sandbox.tls_flags("tls", "own", "authority");
    let runner = setup.sandbox.runner(setup.runner.iter().chain(&tls)).await;
    let mut flags = vec![
        "--drain-delay=0s".into(),
        flag("runners", format!("static:///{}", runner.address())),
        flag("tls-server-name", NAME),
    ];
    flags.extend(tls);
    // The `members` task owns the probers, so the log names this task when a prober panics.
    for (task, logged) in [
        ("discovery", "discovery"),
        ("members", "members"),
        ("probe", "members"),
        ("admin", "admin"),
        ("tls", "tls"),
        ("serve", "serve"),
    ] {
        setup.assert_panic_ends("porch-fn-router", task, logged, &flags).await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_panic_of_any_task_ends_the_runner() {
    let setup = Setup::start().await;
    for task in
        ["settings", "file", "peers", "ownership", "warm-up", "pool", "configuration", "admin", "serve"]
    {
        setup.assert_panic_ends("porch-fn-runner", task, task, &setup.runner).await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_panic_of_the_listener_ends_the_wrapper_server() {
    let setup = Setup::start().await;
    let flags = ["--".into(), setup.sandbox.path("functions/f0").into_os_string()];
    setup.assert_panic_ends("wrapper-server", "serve", "serve", &flags).await;
}
