//! Tags that come to stand for another image: pods of the old one are replaced, and no caller notices but by the answer.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::cluster::ENTRYPOINT;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::figure;
use porch_fn_tests::registry::Access;
use tokio::time::{Instant, sleep};

use super::calls::INPUT;
use super::registries::{ARGUMENTS, Stand, function_of, runs_with};

/// Before it replaces pods, an owner waits for a minute whether it stays one; and an old pod goes after a notice of
/// another minute.
const WITHIN: Duration = Duration::from_mins(3);

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_moved_tag_is_followed_without_a_failed_call() {
    moved_tag(false).await;
}

async fn moved_tag(to_the_end: bool) {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let image = place.push("moving:v1", "before").await;
    let flags = [place.insecure(), "--image-metadata-ttl=2s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = stand.runner(&flags).await;
    runs_with(&client, &image, "before").await;
    let before = place.crane.digest(&image).await;
    assert_eq!(stand.pod_image().await, format!("{image}@{before}"));

    let load = Load::start(runner.address(), 2, std::slice::from_ref(&image));
    assert_eq!(place.push("moving:v1", "after").await, image);
    let moved = Instant::now();
    let after = place.crane.digest(&image).await;
    assert_ne!(after, before);
    let first = loop {
        let answer = client.call(&image, ARGUMENTS).await;
        assert_eq!(answer.output(), ARGUMENTS);
        if answer.log() == format!("{ENTRYPOINT} after\n") {
            break moved.elapsed();
        }
        assert!(moved.elapsed() < WITHIN, "the old image still answers: {}", answer.log());
        sleep(Duration::from_millis(50)).await;
    };
    // The old pod is there as yet, and gets no more calls.
    for _ in 0..10 {
        runs_with(&client, &image, "after").await;
    }
    let now: Vec<_> = stand.namespace.pods().await.iter().map(function_of).collect();
    assert!(now.contains(&format!("{image}@{after}")), "{now:?}");
    if to_the_end {
        let replaced = |pods: &[Pod]| {
            (pods.len() == 1 && function_of(&pods[0]) == format!("{image}@{after}")).then_some(())
        };
        stand.namespace.until_within(WITHIN, "the old pod is gone", replaced).await;
    }
    let whole = moved.elapsed();
    let report = load.stop().await;
    figure(&format!(
        "a moved tag: the new image answers after {first:.1?}{}; {} calls in {whole:.1?}, {:?} failed, slowest {:.1?}",
        if to_the_end { ", and the old pod is gone at the end" } else { "" },
        report.succeeded,
        report.failed,
        report.slowest,
    ));
    report.all_succeeded();
    assert_eq!(client.call(&format!("{image}@{before}"), INPUT).await.output(), INPUT);
}

/// Runs of minutes, for `tests/faults`.
mod slow {
    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn a_moved_tag_replaces_pods_without_a_failed_call() {
        super::moved_tag(true).await;
    }
}
