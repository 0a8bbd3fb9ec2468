//! A process that adopts orphans, as the wrapper of a pod does: nothing of a call outlives it.
//!
//! A process of its own, since it becomes the parent of what others leave behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use rustix::process::getpid;
use tokio::time::{Instant, sleep, timeout};
use wrapper_server::process::{Environment, Finished, Limits, Program, RunError, adopt_orphans, run};

const LIMITS: Limits = Limits { stdout: 1 << 20, stderr_head: 1024, stderr_tail: 1024, join_lines: false };

/// What a call leaves behind, each with its output closed, as daemons have it.
const LEFT_BEHIND: [&str; 4] = [
    // Members of its group that have ended, and some that are killed with it.
    "(:) & (sleep 60 & sleep 60 & wait)",
    // A session of its own, with a zombie in it.
    "setsid sh -c 'sleep 0 & exec sleep 60'",
    // A daemon: its parent is gone before the call is.
    "(setsid setsid sh -c 'setsid sleep 60 & sleep 60' &)",
    // One that goes on starting others.
    "setsid sh -c 'for i in 1 2 3 4 5 6 7 8 9; do setsid sleep 60 & sleep 0.01; done'",
];
/// One that does not say which call it is of.
const UNNAMED: &str = "env -i setsid sh -c 'sleep 60 & sleep 60'";

/// All descendants, zombies included: the number of the parent and what is running.
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

async fn within_a_second(what: &str, holds: impl Fn() -> bool) {
    let looked = timeout(Duration::from_secs(1), async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    looked.await.unwrap_or_else(|_| panic!("{what}: {:#?}", descendants()));
}

async fn call(script: &str, deadline: Option<Instant>) -> Result<Finished, RunError> {
    let program = Program::new("sh", ["-c", script], Environment::Inherit);
    run(&program, Vec::new(), &LIMITS, deadline).await
}

/// A script that leaves these behind and goes on.
fn leave(left_behind: &[&str]) -> String {
    let each: Vec<_> =
        left_behind.iter().map(|left| format!("{{ {left}; }} </dev/null >/dev/null 2>&1 &\n")).collect();
    each.concat()
}

/// A call that runs until `file` is there, and needs two daemons of its own until then.
async fn with_daemons(file: &Path) {
    let file = file.display();
    let daemon = |unnamed, pid| {
        format!("({unnamed} setsid sh -c 'echo $$ >{file}.{pid}; exec sleep 61' >/dev/null 2>&1 &)\n")
    };
    let script = format!(
        "{}{}touch {file}.begun; until [ -e {file} ]; do sleep 0.01; done\n\
         kill -0 $(cat {file}.1) && kill -0 $(cat {file}.2) && echo alive",
        daemon("", 1),
        daemon("env -i", 2)
    );
    assert_eq!(&call(&script, None).await.unwrap().stdout[..], b"alive\n");
}

/// So many calls, four at once.
async fn calls(script: &str, count: usize) {
    let some = async || {
        for _ in 0..count / 4 {
            assert_eq!(&call(&format!("{script} echo done"), None).await.unwrap().stdout[..], b"done\n");
        }
    };
    tokio::join!(some(), some(), some(), some());
}

#[tokio::test]
async fn nothing_outlives_its_call() {
    adopt_orphans();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("over");
    let others = async {
        while !directory.path().join("over.begun").exists() {
            sleep(Duration::from_millis(2)).await;
        }
        calls(&leave(&LEFT_BEHIND), 40).await;
        let deadline = Instant::now() + Duration::from_millis(100);
        let script = leave(&LEFT_BEHIND) + "sleep 60";
        let error = call(&script, Some(deadline)).await.unwrap_err();
        assert!(matches!(error, RunError::Deadline), "{error}");
        // The call beside them protects its own daemons only.
        let own = getpid().as_raw_nonzero().get();
        within_a_second("left behind", || {
            let found = descendants();
            let left = |(parent, command): &(i32, String)| {
                command.contains("sleep 60") || (command.is_empty() && *parent == own)
            };
            !found.iter().any(left)
        })
        .await;
        calls(&leave(&[UNNAMED]), 4).await;
        std::fs::write(&file, "").unwrap();
    };
    tokio::join!(with_daemons(&file), others);
    within_a_second("left behind", || descendants().is_empty()).await;
}
