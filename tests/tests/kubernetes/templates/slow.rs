//! What takes minutes: a pod is replaced only after a minute of undisturbed ownership, and goes only after a notice of
//! another minute.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::process::figure;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{NAME, config_map, runner_with, template, version};
use crate::parity::{Bench, INPUT, is_ours, sleeping, uids};

/// Between two calls of the load.
const PACE: Duration = Duration::from_millis(100);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_changed_template_replaces_pods_without_anyone_waiting() {
    let bench = Bench::new().await;
    let mut template = template(&bench);
    config_map(&bench, &template).await;
    let more = ["--max-parallel-pods-per-function=2", "--max-waitlist-length=1"];
    let runner = runner_with(&bench, NAME, &[&bench.image], &more).await;
    let long = sleeping(Duration::from_secs(3));
    let (one, two) = tokio::join!(runner.call(long.clone()), runner.call(long));
    one.output();
    two.output();
    let old = bench.pods().await;
    assert_eq!(old.len(), 2);
    let record = bench.namespace.record::<Pod>().await;

    template["metadata"]["labels"]["team"] = json!("radio");
    config_map(&bench, &template).await;
    let start = Instant::now();
    let replaced =
        bench.namespace.until_within(Duration::from_mins(6), "both are replaced", |pods: &[Pod]| {
            let ours = || pods.iter().filter(|pod| is_ours(pod));
            let new = |pod: &Pod| old.iter().all(|old| old.uid() != pod.uid());
            (ours().count() == 2 && ours().all(new)).then(|| pods.to_vec())
        });
    let mut replaced = std::pin::pin!(replaced);
    let (mut calls, mut slowest) = (0, Duration::ZERO);
    let pods = loop {
        let began = Instant::now();
        // A failed call fails the test.
        runner.succeeds().await;
        calls += 1;
        slowest = slowest.max(began.elapsed());
        tokio::select! {
            pods = &mut replaced => break pods,
            () = sleep(PACE) => {}
        }
    };
    figure(&format!(
        "2 pods replaced after a change of the template in {:?}: {calls} calls, 0 failed, the slowest {slowest:?}",
        start.elapsed()
    ));
    assert!(slowest < Duration::from_secs(1), "a call waited for a pod: {slowest:?}");
    // Its new pod first, one at a time.
    let lives = |pod: &Pod| is_ours(pod) && pod.metadata.deletion_timestamp.is_none();
    assert!(record.most_at_once(lives) <= 3);
    assert_eq!(uids(&record).len(), 4);
    for pod in &pods {
        assert_eq!(pod.labels()["team"], "radio");
        assert_ne!(version(pod), version(&old[0]));
    }
    assert_eq!(runner.call(INPUT).await.output(), INPUT);
}
