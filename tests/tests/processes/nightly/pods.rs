//! Longer versions of the tests in `pod_faults`.

use futures_util::future::join_all;
use porch_fn_tests::process::{eventually, figure};
use porch_fn_tests::stack::Stack;
use tokio::time::Instant;

use crate::INPUT;
use crate::pod_faults::{
    calls_in_a_pod_leave_nothing, calls_of_executables_leave_nothing, most_pods, take_turns,
};
use crate::pods::pods;

#[tokio::test]
#[ignore = "a thousand calls; tests/run nightly runs it"]
async fn a_thousand_calls_leave_no_processes() {
    calls_in_a_pod_leave_nothing(1000).await;
    calls_of_executables_leave_nothing(1000).await;
}

#[tokio::test]
#[ignore = "minutes; tests/run nightly runs it"]
async fn twenty_functions_take_turns_with_five_pods() {
    take_turns(20, 5, 3).await;
}

/// Each caller calls its function at its own pace, independent of the others.
#[tokio::test]
#[ignore = "a minute; tests/run nightly runs it"]
async fn twenty_callers_share_five_pods_of_three_runners() {
    let names: Vec<_> = (0..20).map(|function| format!("f{function}:v1")).collect();
    let functions: Vec<_> = names.iter().map(|name| (name.as_str(), "exec cat")).collect();
    let stack = Stack::start(3, &["--max-pods=5", "--scan-interval=1s"], &functions).await;
    let begin = Instant::now();
    let callers = names.iter().map(async |name| {
        for _ in 0..3 {
            assert_eq!(stack.client().call(name, INPUT).await.output(), INPUT);
        }
    });
    let most = most_pods(&stack.sandbox, join_all(callers)).await;
    figure(&format!(
        "20 callers with a function each, 3 runners, 5 pods: 60 calls, 0 failed, at most {most} pods at once, {:.1?}",
        begin.elapsed()
    ));
    // Each runner may create 5 pods before it sees the pods of the other two.
    assert!((5..=15).contains(&most), "{most} pods");
    let within = async || (pods(&stack.sandbox).len() <= 5).then_some(());
    eventually("at most 5 pods", within).await;
}
