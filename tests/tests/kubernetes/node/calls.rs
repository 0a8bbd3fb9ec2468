//! What callers notice when pods end while they run calls.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::cluster::Recorder;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use tokio::time::Instant;

use crate::rig::{Bench, CONNECTS, Runner, alive, births, sleeping};

async fn connected_by(connect: &str) -> (Bench, Runner, Recorder<Pod>, Pod) {
    let bench = Bench::new().await;
    let record = bench.namespace.record::<Pod>().await;
    let runner = bench.runner(&[&format!("--pod-connect={connect}")]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    (bench, runner, record, pod)
}

// === impl Runner ===

impl Runner {
    /// Makes a call that takes this long, and runs `happens` meanwhile. Asserts that the call
    /// succeeds, and returns when it did.
    async fn during(&self, takes: Duration, happens: impl AsyncFnOnce()) -> Instant {
        let input = sleeping(takes);
        let call = async {
            let answer = self.call(input.clone()).await;
            (answer, Instant::now())
        };
        let meanwhile = async {
            self.counts("in_flight", 1).await;
            happens().await;
        };
        let ((answer, answered), ()) = tokio::join!(call, meanwhile);
        assert_eq!(answer.output(), &input);
        answered
    }

    /// Asserts how many calls were repeated because their connection was lost, and that no call is
    /// left.
    async fn has_retried(&self, calls: u64) {
        let retries = self.server.metric("porch_fn_runner_retries_total{reason=\"broken\"}").await;
        assert_eq!(retries, Some(calls));
        for field in ["in_flight", "waiting"] {
            self.counts(field, 0).await;
        }
    }
}

/// Waits until the record has this number of pods, and returns their births. The record may learn
/// of pods later than others.
async fn exact_births(record: &Recorder<Pod>, pods: usize) -> Vec<(String, Instant)> {
    let heard = async || (births(record).len() >= pods).then_some(());
    eventually(&format!("{pods} pods were made"), heard).await;
    let births = births(record);
    assert_eq!(births.len(), pods);
    births
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_deleted_pod_finishes_its_call_and_the_next_call_has_another() {
    for connect in CONNECTS {
        let (bench, runner, record, pod) = connected_by(connect).await;
        let next = async || {
            bench.delete(&pod, &DeleteParams::default()).await;
            // The runner's own watch decides: until it reports the deletion, the runner still uses
            // the pod.
            runner.counts("ready", 0).await;
            let start = Instant::now();
            runner.succeeds().await;
            figure(&format!("a call right after the delete by {connect}: {:.1?}", start.elapsed()));
        };
        runner.during(Duration::from_secs(4), next).await;
        exact_births(&record, 2).await;
        runner.has_retried(0).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_call_whose_pod_is_deleted_without_grace_runs_again_in_another() {
    for connect in CONNECTS {
        let (bench, runner, record, pod) = connected_by(connect).await;
        // The kubelet stops a pod that was deleted by force after about 4 s. The call takes longer.
        let takes = Duration::from_secs(10);
        let kill = async || bench.delete(&pod, &DeleteParams::default().grace_period(0)).await;
        let answered = runner.during(takes, kill).await;
        let births = exact_births(&record, 2).await;
        let answered = SystemTime::now() - answered.elapsed();
        let pods = bench.pods().await;
        let new = pods.iter().find(|new| new.uid().as_ref() == Some(&births[1].0)).unwrap();
        // The creation timestamp is rounded down to a whole second.
        let made = SystemTime::from(new.creation_timestamp().unwrap().0);
        assert!(answered >= made + takes, "it ran in the new pod from its beginning");
        runner.has_retried(1).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn pods_deleted_under_load_cost_no_call() {
    for connect in CONNECTS {
        let (bench, runner, record, _) = connected_by(connect).await;
        let load = Load::start(runner.server.address(), 16, std::slice::from_ref(&bench.image));
        for deleted in 1..=3 {
            load.wait_answers(200).await;
            let first = |pods: &[Pod]| pods.iter().find(|pod| alive(pod)).cloned();
            let pod = bench.namespace.until("there is a pod", first).await;
            bench.delete(&pod, &DeleteParams::default()).await;
            let replaced = async || (births(&record).len() > deleted).then_some(());
            eventually("there is another pod", replaced).await;
        }
        load.wait_answers(200).await;
        let report = load.stop().await;
        figure(&format!("3 pods deleted under load by {connect}: {report}"));
        report.assert_all_succeeded();
    }
}
