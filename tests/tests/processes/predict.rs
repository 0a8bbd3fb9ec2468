//! A router that has seen a pipeline lets the runner start all of its pods with the first call.

use std::time::Duration;

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, wait_count};
use tokio::time::{Instant, sleep_until};

use super::INPUT;

const PIPELINE: [&str; 3] =
    ["example.com/functions/a:v1", "example.com/functions/b:v1", "example.com/functions/c:v1"];
/// The router sends no hint for an image that was called within this time.
const WARM: Duration = Duration::from_secs(5);

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_pods_of_a_known_pipeline_start_with_its_first_call() {
    let sandbox = Sandbox::new();
    let pods = sandbox.local_pods(&PIPELINE.map(|image| (image, "cat")));
    // The runner keeps a pod for the longest possible duration of its last call.
    let times = ["--pod-ttl=1s", "--scan-interval=200ms", "--request-timeout=10s"].map(Into::into);
    let runner = sandbox.runner(pods.into_iter().chain(times)).await;
    for (flags, predicts) in [(&[][..], true), (&["--predict=false"], false)] {
        let router = sandbox.router(&[&runner], &[&["--request-timeout=10s"], flags].concat()).await;
        let client = Client::new(router.address());
        for image in PIPELINE {
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
        }
        let called = Instant::now();
        for image in PIPELINE {
            wait_count(&runner, image, "ready", 0).await;
            wait_count(&runner, image, "terminating", 0).await;
        }
        sleep_until(called + WARM + Duration::from_secs(1)).await;
        let created = runner.metric("porch_fn_runner_pool_actions_total{action=\"create\"}").await;
        assert_eq!(client.call(PIPELINE[0], INPUT).await.output(), INPUT);
        if predicts {
            for image in &PIPELINE[1..] {
                wait_count(&runner, image, "ready", 1).await;
            }
            let accepted = router.metric("porch_fn_router_hints_total{outcome=\"accepted\"}").await;
            assert_eq!(accepted, Some(2));
        } else {
            let now = runner.metric("porch_fn_runner_pool_actions_total{action=\"create\"}").await;
            assert_eq!(now, created.map(|created| created + 1));
        }
        for image in PIPELINE {
            wait_count(&runner, image, "ready", 0).await;
        }
    }
}
