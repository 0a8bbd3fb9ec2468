//! A registry that is unavailable. Warm images and images seen before still work; calls of new
//! images fail with the reason.

use kube::api::DeleteParams;

use super::*;
use crate::rig::alive;

const LASTING: Duration = Duration::from_secs(10);
const UNREACHABLE: &str = "the image's registry cannot be reached: check it, and the runner's way to it (proxy, DNS, \
                           firewall), and retry; the runner's log has the cause";
/// The maximum duration of a request to a registry.
const LOOKUP: Duration = Duration::from_secs(20);

/// The registry accepts connections and does not answer. A registry that refuses connections fails
/// sooner.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_registry_that_hangs_costs_no_call_of_an_image_seen_before() {
    let bench = Bench::new().await;
    let place = bench.registry("open", Access::default()).await;
    let (warm, seen) = (place.push("warm:v1", "word").await, place.push("seen:v1", "word").await);
    let new = place.push("new:v1", "word").await;
    // The TTL is so short that all cached metadata is stale during the outage.
    let flags = [place.insecure(), "--image-metadata-ttl=1s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = bench.asking_runner(&flags).await;
    for image in [&warm, &seen] {
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
    }
    let load = Load::start(runner.address(), 4, std::slice::from_ref(&warm));
    let start = Instant::now();
    place.registry.stop();
    let asked = Instant::now();
    client.call(&new, INPUT).await.assert_failed(Code::Unknown, &failed(&new, UNREACHABLE));
    // The call made only one request to the registry.
    assert!(asked.elapsed() < LOOKUP + Duration::from_secs(10), "{:?}", asked.elapsed());

    let mut made = 0;
    while made < 2 || start.elapsed() < LASTING {
        remove(&bench, &seen).await;
        assert_eq!(client.call(&seen, INPUT).await.output(), INPUT);
        made += 1;
        sleep(Duration::from_millis(500)).await;
    }
    // A runner that starts reads image metadata from the existing pods.
    let (fresh, caller) = bench.asking_runner(&flags).await;
    assert_eq!(caller.call(&seen, INPUT).await.output(), INPUT, "by the pod that runs");
    remove(&bench, &seen).await;
    assert_eq!(caller.call(&seen, INPUT).await.output(), INPUT, "by a new one");
    drop(fresh);

    place.registry.resume();
    let back = Instant::now();
    loop {
        let answer = client.call(&new, INPUT).await;
        if answer.code == Code::Ok {
            break;
        }
        answer.assert_failed(Code::Unknown, &failed(&new, UNREACHABLE));
        assert!(back.elapsed() < Duration::from_secs(30), "it is not asked again");
        sleep(Duration::from_millis(50)).await;
    }
    let report = load.stop().await;
    figure(&format!(
        "registry away: {report}; {made} pods made meanwhile; a new image runs {:.1?} after the end",
        back.elapsed()
    ));
    report.assert_all_succeeded();
}

/// Deletes the image's pods.
async fn remove(bench: &Bench, image: &str) {
    let of = |pod: &Pod| alive(pod) && function(pod).image.as_ref().is_some_and(|of| of.starts_with(image));
    for pod in bench.pods().await.iter().filter(|pod| of(pod)) {
        bench.delete(pod, &DeleteParams::default()).await;
    }
    let gone = |pods: &[Pod]| (!pods.iter().any(of)).then_some(());
    bench.namespace.until("the pods go", gone).await;
}
