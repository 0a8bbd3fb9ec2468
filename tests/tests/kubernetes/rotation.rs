//! Credentials that are rotated while calls go on, those of images included that nobody has called before.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream;
use porch_fn_tests::client::Client;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{eventually, figure};
use porch_fn_tests::registry::{User, replace};
use tokio::time::Instant;
use tonic::Code;

use super::calls::INPUT;
use super::registries::{Stand, private};

/// First calls in all, and how many of them at once.
const IMAGES: usize = 16;
const AT_ONCE: usize = 2;

/// First calls of these images; how many there were so far is counted. The errors are returned.
async fn first_calls(client: &Client, images: &[String], done: &AtomicUsize) -> Vec<String> {
    let calls = stream::iter(images).map(|image| async move {
        let answer = client.call(image, INPUT).await;
        done.fetch_add(1, Ordering::Relaxed);
        (answer.code != Code::Ok).then(|| answer.message.clone())
    });
    calls.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

async fn until(done: &AtomicUsize, count: usize) {
    let what = format!("{count} images were called");
    eventually(&what, async || (done.load(Ordering::Relaxed) >= count).then_some(())).await;
}

async fn images(private: &private::Private<'_>) -> Vec<String> {
    let mut images = Vec::new();
    for number in 0..IMAGES {
        images.push(private.place.push(&format!("rotation/function-{number}:v1"), "word").await);
    }
    images
}

/// As it is to be done: the registry takes both until the copy has the new ones.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn credentials_rotated_under_load_cost_no_call() {
    let Some(stand) = Stand::start().await else { return };
    let mut private = private::Private::start(&stand).await;
    let warm = private.place.push("warm:v1", "word").await;
    let images = images(&private).await;
    // The files are read again as often, so that calls go on throughout.
    let flags = [private.flags(), vec!["--scan-interval=1s".to_owned()]].concat();
    let (runner, client) = stand.runner(&flags).await;
    assert_eq!(client.call(&warm, INPUT).await.output(), INPUT);
    let load = Load::start(runner.address(), 4, &[warm]);
    let done = AtomicUsize::new(0);
    let start = Instant::now();
    let rotate = async {
        let mut old = private.user.clone();
        let mut took = Vec::new();
        for (round, after) in [IMAGES / 4, IMAGES / 2].into_iter().enumerate() {
            until(&done, after).await;
            let new = User::new(&format!("robot-{round}"), &format!("planted password {round}"));
            private.place.registry.set_users(&[&old, &new]).await;
            let config = private.config(&new);
            replace(&private.file, &config);
            let written = Instant::now();
            private::until_copied(&stand, "auth-secret", &config).await;
            took.push(written.elapsed());
            // Pods that were made with the old copy have pulled by then.
            let made = done.load(Ordering::Relaxed);
            until(&done, (made + AT_ONCE).min(IMAGES)).await;
            private.place.registry.set_users(&[&new]).await;
            old = new;
        }
        took
    };
    let (failed, copied) = tokio::join!(first_calls(&client, &images, &done), rotate);
    let report = load.stop().await;
    figure(&format!(
        "credentials rotated twice in {:.1?}: {} warm calls, {} failed, {IMAGES} first calls, {} failed; copied to the \
         cluster after {copied:.1?}",
        start.elapsed(),
        report.succeeded,
        report.failed.values().sum::<usize>(),
        failed.len(),
    ));
    assert!(failed.is_empty(), "{failed:?}");
    report.all_succeeded();
}

/// The registry takes the old ones no more from the moment at which the file changes: the runner is refused, and reads
/// the file again.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn credentials_that_were_withdrawn_are_read_again_at_the_first_refusal() {
    let Some(stand) = Stand::start().await else { return };
    let mut private = private::Private::start(&stand).await;
    let warm = private.place.push("warm:v1", "word").await;
    let images = images(&private).await;
    let (runner, client) = stand.runner(&private.flags()).await;
    assert_eq!(client.call(&warm, INPUT).await.output(), INPUT);
    let load = Load::start(runner.address(), 4, &[warm]);
    let done = AtomicUsize::new(0);
    let start = Instant::now();
    let mut failed = Vec::new();
    for (round, images) in images.chunks(IMAGES / 4).enumerate() {
        let new = User::new(&format!("robot-{round}"), &format!("planted password {round}"));
        let config = private.config(&new);
        private.place.registry.set_users(&[&new]).await;
        replace(&private.file, config);
        failed.extend(first_calls(&client, images, &done).await);
    }
    let report = load.stop().await;
    figure(&format!(
        "credentials withdrawn 4 times in {:.1?}: {} warm calls, {} failed, {IMAGES} first calls, {} failed",
        start.elapsed(),
        report.succeeded,
        report.failed.values().sum::<usize>(),
        failed.len(),
    ));
    assert!(failed.is_empty(), "{failed:?}");
    report.all_succeeded();
}
