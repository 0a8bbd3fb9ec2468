//! The node cannot start a pod. Its callers soon get the reason, later callers get the same reason,
//! and no failed pod is left.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use porch_fn_tests::process::{PATIENCE, figure};
use tokio::time::Instant;
use tonic::Code;

use crate::rig::{INPUT, Setup, failed, template, wait_count};

/// The kubelet waits this long before it repeats a failed pull or start. The runner must report the
/// failure sooner; on an idle node it needs under 2 s.
const KUBELET_BACKOFF: Duration = Duration::from_secs(10);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_image_that_does_not_exist_fails_early() {
    let setup = Setup::new().await;
    let bogus = format!("{}/no/such-image:v1", setup.cluster.registry());
    let runner = setup.runner_of(&[&setup.image, &bogus], &[]).await;
    // After this call, the node has the wrapper-server's image.
    runner.call_ok().await;
    let reason = "the function's image was not found in its registry or may not be pulled: check its name and tag, \
                      and the pull secrets of the function namespace";
    // Each call must fail before the kubelet repeats the pull.
    for _ in 0..2 {
        let start = Instant::now();
        let answer = runner.client.call(&bogus, INPUT).await;
        figure(&format!("an image that does not exist: {:.1?}", start.elapsed()));
        answer.assert_failed(Code::Unknown, &failed(&bogus, reason));
        assert!(start.elapsed() < KUBELET_BACKOFF, "{:?}", start.elapsed());
        let gone = |pods: &[Pod]| (pods.len() == 1).then_some(());
        setup.namespace.wait_until("the pod is collected, and the other one is not", gone).await;
    }
    wait_count(&runner.server, &bogus, "waiting", 0).await;
    runner.call_ok().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_container_that_cannot_run_fails_the_call_and_its_last_lines_are_logged() {
    let remedy = "check that the pod template puts a wrapper-server for the node's platform at the path in the container's \
                  command (WRAPPER_SERVER_IMAGE, --function-pod-template); the runner's log has the container's last lines";
    for (command, what, last_line, restarted) in [
        (
            &["/tools/wrapper-server", "--max-concurrent-calls=many"][..],
            "the container `function` ended with exit code 64",
            "--max-concurrent-calls",
            true,
        ),
        (
            &["/tools/no-such-program"],
            "the entrypoint of the container `function` could not be started",
            "/tools/no-such-program",
            false,
        ),
    ] {
        let setup = Setup::new().await;
        setup.write_template(&template(&setup.cluster, command)).await;
        let record = setup.namespace.record::<Pod>().await;
        let runner = setup.runner_with("template", &[&setup.image], &[]).await;
        let start = Instant::now();
        let answer = runner.call(INPUT).await;
        figure(&format!("{command:?}: {:.1?}", start.elapsed()));
        answer.assert_failed(Code::Unknown, &failed(&setup.image, &format!("{what}: {remedy}")));
        assert!(restarted || start.elapsed() < KUBELET_BACKOFF, "{:?}", start.elapsed());
        assert!(runner.server.log().contains(last_line), "{}", runner.server.log());
        setup.namespace.wait_empty::<Pod>(PATIENCE).await;
        for field in ["starting", "waiting", "in_flight"] {
            runner.wait_count(field, 0).await;
        }
        record.wait_all_gone().await;
        let restarts = |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            statuses.map(|status: &ContainerStatus| status.restart_count).max().unwrap_or_default()
        };
        assert!(!restarted || record.most_at_once(|pod| restarts(pod) >= 1) == 1, "one restart is allowed");
        assert_eq!(record.most_at_once(|pod| restarts(pod) >= 2), 0, "only one restart is allowed");
    }
}
