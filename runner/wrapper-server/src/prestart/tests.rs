//! Each function here writes `early` at once, or waits for its request.

use std::os::unix::process::ExitStatusExt as _;

use bytes::Bytes;
use tokio::time::timeout;

use super::*;
use crate::outcome::limits;
use crate::process::{Environment, Finished};

fn shell(script: &str) -> Program {
    Program::new("sh", ["-c", script], Environment::Inherit)
}

async fn answer(started: Started) -> Finished {
    let input = [Bytes::from_static(b"request")];
    timeout(Duration::from_secs(20), started.run(input, &limits(1 << 20), None)).await.unwrap().unwrap()
}

/// Waits until the waiting process has done something.
async fn until_touched(prestart: &Prestart) {
    let touched = async {
        while prestart.state.lock().waiting.as_ref().is_some_and(Started::is_untouched) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(20), touched).await.unwrap();
}

#[tokio::test]
async fn a_call_gets_the_process_that_waits_and_others_start_their_own() {
    let prestart = Prestart::new(shell("cat; echo \" of $$\""));
    prestart.start();
    let (first, waiting) = prestart.begin(false);
    let (second, none) = prestart.begin(false);
    assert!(none.is_none(), "only one process waits");
    let finished = answer(waiting.unwrap()).await;
    assert!(finished.stdout.starts_with(b"request of ") && finished.status.into_raw() == 0);
    for running in [first, second] {
        prestart.start();
        assert!(prestart.state.lock().waiting.is_none(), "a call runs");
        drop(running);
    }
    prestart.start();
    let (_traced, none) = prestart.begin(true);
    assert!(none.is_none(), "the environment of the waiting process has no trace context");
    assert!(prestart.begin(false).1.is_some());
}

#[tokio::test]
async fn a_function_that_acts_before_its_request_is_not_started_early_again() {
    for script in ["echo early; cat", "echo early >&2; cat", "exec <&-; sleep 60", "exit 0", "kill -9 $$"] {
        let prestart = Prestart::new(shell(script));
        prestart.start();
        until_touched(&prestart).await;
        assert!(prestart.begin(false).1.is_none(), "{script}");
        prestart.start();
        assert!(prestart.state.lock().waiting.is_none(), "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_waits_for_a_minute() {
    let prestart = Prestart::new(shell("cat"));
    let keep = prestart.keep();
    let mut keep = std::pin::pin!(keep);
    let mut after = async |wait| {
        assert!(timeout(wait, &mut keep).await.is_err());
        prestart.state.lock().waiting.is_some()
    };
    assert!(after(Duration::from_secs(59)).await);
    assert!(!after(Duration::from_secs(2)).await);
    drop(prestart.begin(false));
    assert!(after(Duration::from_secs(1)).await, "the next call starts one again");
}
