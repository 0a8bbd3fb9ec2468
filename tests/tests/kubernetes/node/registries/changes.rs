//! Credentials that are rotated and tags that move while calls go on: no call fails.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use tokio::time::sleep;

use super::*;

/// First calls in all, and how many of them at once.
const IMAGES: usize = 16;
const AT_A_TIME: usize = 2;
/// Before it replaces pods, an owner waits for a minute whether it stays one.
const FOLLOWED_WITHIN: Duration = Duration::from_mins(3);

/// As an operator does it: the registry takes both passwords until the copy has the new one.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn credentials_rotated_under_load_cost_no_call() {
    let bench = Bench::new().await;
    let mut old = user("the first");
    let mut place = bench.registry("private", Access { user: Some(old.clone()), tls: None }).await;
    let warm = place.push("warm:v1", "word").await;
    let mut images = Vec::new();
    for number in 0..IMAGES {
        images.push(place.push(&format!("rotation/function-{number}:v1"), "word").await);
    }
    // The files are read again as often, so that calls go on throughout.
    let flags =
        [&bench.credentials(&place.config(&old))[..], &[place.insecure(), "--scan-interval=1s".to_owned()]]
            .concat();
    let (runner, client) = bench.asking_runner(&flags).await;
    assert_eq!(client.call(&warm, INPUT).await.output(), INPUT);
    let load = Load::start(runner.address(), 4, &[warm]);
    let done = AtomicUsize::new(0);
    let until = async |count: usize| {
        let reached = async || (done.load(Ordering::Relaxed) >= count).then_some(());
        eventually(&format!("{count} images were called"), reached).await;
    };
    let first_calls = stream::iter(&images).map(|image| async {
        let answer = client.call(image, INPUT).await;
        done.fetch_add(1, Ordering::Relaxed);
        (answer.code != Code::Ok).then_some(answer.message)
    });
    let first_calls = first_calls.buffer_unordered(AT_A_TIME).filter_map(std::future::ready);
    let rotate = async {
        for (round, after) in [IMAGES / 4, IMAGES / 2].into_iter().enumerate() {
            until(after).await;
            let new = User::new(&format!("robot-{round}"), &format!("planted password {round}"));
            place.registry.set_users(&[&old, &new]).await;
            let config = place.config(&new);
            bench.credentials(&config);
            bench.copied(&config).await;
            // Pods that were made with the old copy have pulled by then.
            until((done.load(Ordering::Relaxed) + AT_A_TIME).min(IMAGES)).await;
            place.registry.set_users(&[&new]).await;
            old = new;
        }
    };
    let (failed, ()) = tokio::join!(first_calls.collect::<Vec<_>>(), rotate);
    let report = load.stop().await;
    figure(&format!("credentials rotated twice: {report}; {} of {IMAGES} first calls failed", failed.len()));
    assert!(failed.is_empty(), "{failed:?}");
    report.all_succeeded();
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_moved_tag_is_followed_without_a_failed_call() {
    let bench = Bench::new().await;
    let place = bench.registry("open", Access::default()).await;
    let image = place.push("moving:v1", "before").await;
    let flags = [place.insecure(), "--image-metadata-ttl=2s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = bench.asking_runner(&flags).await;
    runs_with(&client, &image, "before").await;
    let before = place.registry.digest(&image).await;

    let load = Load::start(runner.address(), 2, std::slice::from_ref(&image));
    place.push("moving:v1", "after").await;
    let moved = Instant::now();
    let after = place.registry.digest(&image).await;
    loop {
        let answer = client.call(&image, ARGUMENTS).await;
        assert_eq!(answer.output(), ARGUMENTS);
        if answer.log() == format!("{ENTRYPOINT} after\n") {
            break;
        }
        assert!(moved.elapsed() < FOLLOWED_WITHIN, "the old image still answers: {}", answer.log());
        sleep(Duration::from_millis(50)).await;
    }
    figure(&format!("a moved tag: the new image answers after {:.1?}", moved.elapsed()));
    // The old pod is there as yet, and gets no more calls.
    for _ in 0..10 {
        runs_with(&client, &image, "after").await;
    }
    bench.pod_of(&format!("{image}@{after}")).await;
    load.stop().await.all_succeeded();
    assert_eq!(client.call(&format!("{image}@{before}"), INPUT).await.output(), INPUT);
}
