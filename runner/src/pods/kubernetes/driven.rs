//! What the whole way from a call to the API server promises of many pods together. Time is paused:
//! an hour passes in seconds.

mod cluster;
mod rig;

use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::{Config, Limits};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::names;
use rig::Rig;

const MINUTE: Duration = Duration::from_mins(1);

fn images(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("example.com/fn-{number}:v1")).collect()
}

/// Calls each image now and then until it is dropped; reports what failed.
fn calls(rig: &Arc<Rig>, images: &[String], every: Duration) -> JoinSet<Vec<String>> {
    let mut callers = JoinSet::new();
    for (number, image) in images.iter().cloned().enumerate() {
        let rig = Arc::clone(rig);
        let start = Instant::now() + every * u32::try_from(number % 97).unwrap() / 97;
        callers.spawn(async move {
            sleep_until(start).await;
            let mut failed = Vec::new();
            while !rig.is_over() {
                failed.extend(rig.call(&image).await.err());
                sleep(every).await;
            }
            failed
        });
    }
    callers
}

#[tokio::test(start_paused = true)]
async fn a_new_wrapper_takes_one_pod_in_twenty_more_at_a_time_and_no_call() {
    const IMAGES: usize = 200;
    let rig = Arc::new(Rig::new(Config::default(), "wrapper:v1").await);
    let images = images(IMAGES);
    let callers = calls(&rig, &images, MINUTE);
    sleep(2 * MINUTE).await;
    let versions = rig.cluster.annotations(names::TEMPLATE_VERSION);
    assert_eq!(versions.len(), IMAGES, "each has one pod");

    rig.cluster.count_anew();
    rig.template("wrapper:v2");
    let began = Instant::now();
    let mut new = 0;
    while new < IMAGES {
        assert!(began.elapsed() < 180 * MINUTE, "{new} of {IMAGES} were replaced");
        sleep(MINUTE).await;
        let now = rig.cluster.annotations(names::TEMPLATE_VERSION);
        new = now.iter().filter(|version| **version != versions[0]).count();
    }
    sleep(2 * MINUTE).await;
    rig.end();
    let failed: Vec<_> = callers.join_all().await.concat();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(rig.cluster.annotations(names::TEMPLATE_VERSION).len(), IMAGES);
    // With those that end.
    let most = rig.cluster.most_pods();
    assert!((IMAGES + 1..=IMAGES + IMAGES / 20).contains(&most), "{most} pods");
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_refuses_one_image_keeps_no_other_from_being_collected() {
    const TTL: Duration = Duration::from_mins(4);
    let limits = Limits { max_pods: 8, waitlist: 1, per_pod: 2, ttl: TTL, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let scan = config.scan_interval;
    let rig = Arc::new(Rig::new(config, "wrapper:v1").await);
    let images = images(20);
    let (refused, others) = images.split_first().unwrap();
    rig.call(refused).await.unwrap();
    rig.cluster.refuse(Some(refused));
    // More at once than its one pod takes: others are created, and this one is pushed, in vain.
    let load = calls(&rig, &vec![refused.clone(); 6], Duration::from_secs(1));

    // One after the other, over ten minutes.
    let mut used = Vec::new();
    for image in others {
        rig.call(image).await.unwrap();
        used.push((image.clone(), Instant::now()));
        sleep(MINUTE / 2).await;
    }
    sleep(TTL + 2 * scan).await;
    let refusals = rig.cluster.refusals();
    rig.end();
    load.join_all().await;

    let deleted = rig.cluster.deleted();
    for (image, used) in used {
        let at: Vec<_> = deleted.iter().filter(|(of, _)| *of == image).map(|&(_, at)| at - used).collect();
        assert!(matches!(at[..], [at] if at > TTL / 2 && at <= TTL + scan * 2), "{image}: {at:?}");
    }
    assert!(deleted.iter().all(|(image, _)| image != refused), "it is in use");
    assert!(refusals > 100, "there was something to refuse: {refusals}");
}
