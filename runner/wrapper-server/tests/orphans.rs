//! What a wrapper that is PID 1 of its pod must do besides: orphans become its children and must be reaped by it.
//!
//! A process of its own, since it makes itself the parent of orphans, as PID 1 is.

use std::time::Duration;

use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::time::{Instant, sleep, timeout};
use wrapper_server::process::{Environment, Limits, Program, RunError, run};

const LIMITS: Limits = Limits { stdout: 1 << 20, stderr_head: 1024, stderr_tail: 1024, join_lines: false };

fn children() -> Vec<String> {
    let is_ours = |stat: &String| {
        let parent = stat.rsplit_once(')').and_then(|(_, tail)| tail.split_ascii_whitespace().nth(1));
        parent.is_some_and(|parent| parent == getpid().to_string())
    };
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    processes
        .filter_map(|process| std::fs::read_to_string(process.ok()?.path().join("stat")).ok())
        .filter(is_ours)
        .collect()
}

async fn no_children_remain() {
    let looked = timeout(Duration::from_secs(20), async {
        while !children().is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    looked.await.unwrap_or_else(|_| panic!("still there: {:?}", children()));
}

#[tokio::test]
async fn orphans_of_a_call_are_reaped() {
    set_child_subreaper(Some(Pid::INIT)).unwrap();
    let call = async |script: &str, deadline| {
        let program = Program::new("sh", ["-c", script], Environment::Inherit);
        run(&program, Vec::new(), &LIMITS, deadline).await
    };
    // Orphans that have ended, and orphans of orphans that are killed at the end.
    let orphans = "for i in 1 2 3; do (:) & (sleep 60 >/dev/null & sleep 60 >/dev/null & wait) >/dev/null & done; echo done";
    for _ in 0..20 {
        assert_eq!(&call(orphans, None).await.unwrap().stdout[..], b"done\n");
    }
    no_children_remain().await;

    let deadline = Instant::now() + Duration::from_millis(100);
    let error = call(&format!("{orphans}; sleep 60"), Some(deadline)).await.unwrap_err();
    assert!(matches!(error, RunError::Deadline), "{error}");
    no_children_remain().await;
}
