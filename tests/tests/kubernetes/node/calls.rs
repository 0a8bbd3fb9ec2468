//! Pods end while they run calls.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::cluster::Recorder;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use tokio::time::Instant;

use crate::rig::{CONNECTS, Runner, Setup, alive, births, sleeping};

async fn connected_by(connect: &str) -> (Setup, Runner, Recorder<Pod>, Pod) {
    let setup = Setup::new().await;
    let record = setup.namespace.record::<Pod>().await;
    let runner = setup.runner(&[&format!("--pod-connect={connect}")]).await;
    runner.call_ok().await;
    let pod = setup.pod().await;
    (setup, runner, record, pod)
}

// === impl Runner ===

impl Runner {
    /// Makes a call that takes this long, and runs `happens` during the call. Asserts that the call
    /// succeeds, and returns when its answer came.
    async fn call_during(&self, takes: Duration, happens: impl AsyncFnOnce()) -> Instant {
        let input = sleeping(takes);
        let call = async {
            let answer = self.call(input.clone()).await;
            (answer, Instant::now())
        };
        let meanwhile = async {
            self.wait_count("in_flight", 1).await;
            happens().await;
        };
        let ((answer, answered), ()) = tokio::join!(call, meanwhile);
        assert_eq!(answer.output(), &input);
        answered
    }

    /// Asserts that this number of calls was retried because their connection was lost, and that no
    /// call is running or waiting.
    async fn assert_retries(&self, expected: u64) {
        let retries = self.server.metric("porch_fn_runner_retries_total{reason=\"broken\"}").await;
        assert_eq!(retries, Some(expected));
        for field in ["in_flight", "waiting"] {
            self.wait_count(field, 0).await;
        }
    }
}

/// Waits until the record has exactly this number of pods, and returns the first state of each. The
/// record has its own watch, which may report a pod later than the runner's watch.
async fn wait_births(record: &Recorder<Pod>, pods: usize) -> Vec<Pod> {
    let recorded = async || Some(births(record)).filter(|births| births.len() >= pods);
    let births = eventually(&format!("{pods} pods were created"), recorded).await;
    assert_eq!(births.len(), pods);
    births
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_deleted_pod_finishes_its_call_and_the_next_call_gets_another_pod() {
    for connect in CONNECTS {
        let (setup, runner, record, pod) = connected_by(connect).await;
        let next = async || {
            setup.delete(&pod, &DeleteParams::default()).await;
            // The runner uses the pod until its own watch reports the deletion.
            runner.wait_count("ready", 0).await;
            let start = Instant::now();
            runner.call_ok().await;
            figure(&format!("a call right after the delete by {connect}: {:.1?}", start.elapsed()));
        };
        runner.call_during(Duration::from_secs(4), next).await;
        wait_births(&record, 2).await;
        runner.assert_retries(0).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_call_whose_pod_is_deleted_without_grace_runs_again_in_another_pod() {
    for connect in CONNECTS {
        let (setup, runner, record, pod) = connected_by(connect).await;
        // The kubelet stops a pod about 4 s after a deletion by force. The call takes longer.
        let takes = Duration::from_secs(10);
        let kill = async || setup.delete(&pod, &DeleteParams::default().grace_period(0)).await;
        let answered = runner.call_during(takes, kill).await;
        let births = wait_births(&record, 2).await;
        let answered = SystemTime::now() - answered.elapsed();
        // The creation timestamp is rounded down to a whole second.
        let created = SystemTime::from(births[1].creation_timestamp().unwrap().0);
        assert!(answered >= created + takes, "it ran in the new pod from its beginning");
        runner.assert_retries(1).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn pods_deleted_under_load_fail_no_call() {
    for connect in CONNECTS {
        let (setup, runner, record, _) = connected_by(connect).await;
        let load = Load::start(runner.server.address(), 16, std::slice::from_ref(&setup.image));
        for deleted in 1..=3 {
            load.wait_answers(200).await;
            let first = |pods: &[Pod]| pods.iter().find(|pod| alive(pod)).cloned();
            let pod = setup.namespace.wait_until("there is a pod", first).await;
            setup.delete(&pod, &DeleteParams::default()).await;
            let replaced = async || (births(&record).len() > deleted).then_some(());
            eventually("there is another pod", replaced).await;
        }
        load.wait_answers(200).await;
        let report = load.stop().await;
        figure(&format!("3 pods deleted under load by {connect}: {report}"));
        report.assert_all_succeeded();
    }
}
