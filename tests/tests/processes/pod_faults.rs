//! What production does to pods, on local ones: pods that hang, too little room. That calls leave no processes is tested in
//! runner/wrapper-server/tests/orphans.rs.

use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, eventually, figure};
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Code;

use super::INPUT;
use super::pods::{IMAGE, pods, runner};
/// A wrapper-server that is stopped answers nothing and closes nothing. The calls that it has reach their deadlines;
/// another pod serves the next one.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_that_hangs_is_replaced_after_the_first_deadline() {
    let sandbox = Sandbox::new();
    let (runner, client) = runner(&sandbox, "exec cat", &["--pod-ready-timeout=5s"]).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
    let hung = pods(&sandbox).remove(0);
    hung.signal(Signal::STOP);
    let begin = Instant::now();
    // Of eight callers one has a short deadline: it pays for the others.
    let first = async {
        let late = client.call_within(IMAGE, INPUT, Duration::from_secs(2)).await;
        (late, client.call(IMAGE, INPUT).await)
    };
    let others = join_all((0..7).map(|_| client.call_within(IMAGE, INPUT, Duration::from_secs(30))));
    let ((late, next), others) = tokio::join!(first, others);
    assert_eq!(late.code, Code::DeadlineExceeded, "it was on the pod that hangs: {}", late.message);
    for answer in [&next].into_iter().chain(&others) {
        assert_eq!(answer.output(), INPUT);
    }
    figure(&format!("a hung pod under 8 callers: all but one are served, within {:.1?}", begin.elapsed()));
    assert!(begin.elapsed() < Duration::from_secs(10), "long before their deadlines");
    assert!(runner.log().contains("does not answer"), "{}", runner.log());
    assert_eq!(runner.metric("porch_fn_runner_pods_hung_total").await, Some(1));
    // Not ready for so long, the pod that hangs is deleted.
    eventually("its end", async || {
        let pods = pods(&sandbox);
        (pods.len() == 1 && pods[0].pid != hung.pid).then_some(())
    })
    .await;
}

/// The most pods at once until `work` ends.
async fn most_pods(sandbox: &Sandbox, work: impl Future) -> usize {
    let mut most = 0;
    let mut looks = interval(Duration::from_millis(50));
    // A busy machine takes longer to read /proc, and the work needs time as well.
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(work);
    loop {
        tokio::select! {
            _ = &mut work => return most,
            _ = looks.tick() => most = most.max(pods(sandbox).len()),
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn functions_take_turns_in_too_few_places() {
    const PLACES: usize = 3;
    let images = [0, 1, 2, 3, 4].map(|number| format!("example.com/functions/f{number}:v1"));
    let sandbox = Sandbox::new();
    let mut flags = sandbox.local_pods(&images.each_ref().map(|image| (image.as_str(), "exec cat")));
    flags.extend([format!("--max-pods={PLACES}").into(), "--scan-interval=1s".into()]);
    let runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());
    let mut evicted = 0;
    let calls = async {
        for image in &images {
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
            let deleted = "porch_fn_runner_pool_actions_total{action=\"delete evicted\"}";
            let now = runner.metric(deleted).await.unwrap_or_default();
            assert!(now <= evicted + 1, "one call makes one place");
            evicted = now;
        }
    };
    let most = most_pods(&sandbox, calls).await;
    assert!(most <= PLACES, "{most} pods");
    assert_eq!(evicted, (images.len() - PLACES) as u64);
}
