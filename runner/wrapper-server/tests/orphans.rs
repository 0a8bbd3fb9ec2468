//! The wrapper-server of a pod adopts orphans, so that no process of a call outlives the call.
//!
//! This test has its own binary, because it becomes the parent of all orphans of its calls.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use rustix::process::getpid;
use tokio::time::{Instant, sleep, timeout};
use wrapper_server::process::{Environment, Finished, Limits, Program, RunError, adopt_orphans, run};

const LIMITS: Limits = Limits { stdout: 1 << 20, stderr_head: 1024, stderr_tail: 1024, join_lines: false };

/// Commands that leave processes behind. Like daemons, they do not write to the call's output.
const LEFT_BEHIND: [&str; 4] = [
    // Members of the call's process group: one that has ended, and others that still run.
    "(:) & (sleep 60 & sleep 60 & wait)",
    // A process with its own session and a zombie.
    "setsid sh -c 'sleep 0 & exec sleep 60'",
    // A daemon: its parent exits before the call ends.
    "(setsid setsid sh -c 'setsid sleep 60 & sleep 60' &)",
    // A process that starts new processes after the call.
    "setsid sh -c 'for i in 1 2 3 4 5 6 7 8 9; do setsid sleep 60 & sleep 0.01; done'",
];
/// Leaves processes without the environment variable that identifies the call.
const WITHOUT_NAME: &str = "env -i setsid sh -c 'sleep 60 & sleep 60'";

/// All descendants of this process, including zombies: the parent and the command line of each.
fn descendants() -> Vec<(i32, String)> {
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        for task in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().map(|child| child.parse().unwrap()) {
                let command = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                found.push((parent, String::from_utf8_lossy(&command).replace('\0', " ")));
                parents.push(child);
            }
        }
    }
    found
}

async fn wait_at_most_a_second(failure: &str, holds: impl Fn() -> bool) {
    let waited = timeout(Duration::from_secs(1), async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{failure}: {:#?}", descendants()));
}

async fn call(script: &str, deadline: Option<Instant>) -> Result<Finished, RunError> {
    let program = Program::new("sh", ["-c", script], Environment::Inherit);
    run(&program, Vec::new(), &LIMITS, deadline).await
}

/// A script that starts these commands in the background.
fn in_background(commands: &[&str]) -> String {
    let lines = commands.iter().map(|command| format!("{{ {command}; }} </dev/null >/dev/null 2>&1 &\n"));
    lines.collect()
}

/// A call that runs until `file` exists. Its two daemons must live until then.
async fn call_with_daemons(file: &Path) {
    let file = file.display();
    let daemon = |prefix, pid| {
        format!("({prefix} setsid sh -c 'echo $$ >{file}.{pid}; exec sleep 61' >/dev/null 2>&1 &)\n")
    };
    let script = format!(
        "{}{}touch {file}.begun; until [ -e {file} ]; do sleep 0.01; done\n\
         kill -0 $(cat {file}.1) && kill -0 $(cat {file}.2) && echo alive",
        daemon("", 1),
        daemon("env -i", 2)
    );
    assert_eq!(&call(&script, None).await.unwrap().stdout[..], b"alive\n");
}

/// Runs `count` calls, four at a time.
async fn run_calls(script: &str, count: usize) {
    let quarter = async || {
        for _ in 0..count / 4 {
            assert_eq!(&call(&format!("{script} echo done"), None).await.unwrap().stdout[..], b"done\n");
        }
    };
    tokio::join!(quarter(), quarter(), quarter(), quarter());
}

#[tokio::test]
async fn no_process_outlives_its_call() {
    adopt_orphans();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("end");
    let other_calls = async {
        while !directory.path().join("end.begun").exists() {
            sleep(Duration::from_millis(2)).await;
        }
        run_calls(&in_background(&LEFT_BEHIND), 40).await;
        let deadline = Instant::now() + Duration::from_millis(100);
        let script = in_background(&LEFT_BEHIND) + "sleep 60";
        let error = call(&script, Some(deadline)).await.unwrap_err();
        assert!(matches!(error, RunError::Deadline), "{error}");
        // The long call still runs. Only its own daemons may live on.
        let own = getpid().as_raw_nonzero().get();
        wait_at_most_a_second("processes were left behind", || {
            let found = descendants();
            let is_left_behind = |(parent, command): &(i32, String)| {
                command.contains("sleep 60") || (command.is_empty() && *parent == own)
            };
            !found.iter().any(is_left_behind)
        })
        .await;
        run_calls(&in_background(&[WITHOUT_NAME]), 4).await;
        std::fs::write(&file, "").unwrap();
    };
    tokio::join!(call_with_daemons(&file), other_calls);
    wait_at_most_a_second("processes were left behind", || descendants().is_empty()).await;
}
