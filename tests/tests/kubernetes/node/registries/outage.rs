//! A registry is unavailable. Calls of images that a runner has seen before succeed; calls of new
//! images fail with the reason.

use kube::api::DeleteParams;
use rustix::process::Signal;

use super::*;
use crate::rig::alive;

const LASTING: Duration = Duration::from_secs(10);
const UNREACHABLE: &str = "the image's registry cannot be reached: check the registry and the runner's network path \
                           to it (proxy, DNS, firewall), and retry; the runner's log has the cause";
/// The maximum duration of a request to a registry.
const LOOKUP: Duration = Duration::from_secs(20);

/// The registry accepts connections and does not answer. If it refused them, lookups would fail
/// sooner.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_registry_that_hangs_fails_no_call_of_an_image_seen_before() {
    let setup = Setup::new().await;
    let registry = setup.registry("open", Access::default()).await;
    let (warm, seen) = (registry.push("warm:v1", "word").await, registry.push("seen:v1", "word").await);
    let new = registry.push("new:v1", "word").await;
    // The TTL is so short that all cached metadata is stale during the outage.
    let flags = [registry.insecure(), "--image-metadata-ttl=1s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = setup.runner_without_metadata(&flags).await;
    for image in [&warm, &seen] {
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
    }
    let load = Load::start(runner.address(), 4, std::slice::from_ref(&warm));
    let start = Instant::now();
    registry.server.signal(Signal::STOP);
    let asked = Instant::now();
    client.call(&new, INPUT).await.assert_failed(Code::Unknown, &failed(&new, UNREACHABLE));
    // The call made only one request to the registry.
    assert!(asked.elapsed() < LOOKUP + Duration::from_secs(10), "{:?}", asked.elapsed());

    let mut made = 0;
    while made < 2 || start.elapsed() < LASTING {
        delete_pods(&setup, &seen).await;
        assert_eq!(client.call(&seen, INPUT).await.output(), INPUT);
        made += 1;
        sleep(Duration::from_millis(500)).await;
    }
    // A runner that starts reads image metadata from the existing pods.
    let (fresh, caller) = setup.runner_without_metadata(&flags).await;
    assert_eq!(caller.call(&seen, INPUT).await.output(), INPUT, "in the existing pod");
    delete_pods(&setup, &seen).await;
    assert_eq!(caller.call(&seen, INPUT).await.output(), INPUT, "in a new pod");
    drop(fresh);

    registry.server.signal(Signal::CONT);
    let back = Instant::now();
    loop {
        let answer = client.call(&new, INPUT).await;
        if answer.code == Code::Ok {
            break;
        }
        answer.assert_failed(Code::Unknown, &failed(&new, UNREACHABLE));
        assert!(back.elapsed() < Duration::from_secs(30), "the runner does not ask the registry again");
        sleep(Duration::from_millis(50)).await;
    }
    let report = load.stop().await;
    figure(&format!(
        "registry unavailable: {report}; {made} pods created meanwhile; a new image runs {:.1?} after the end",
        back.elapsed()
    ));
    report.assert_all_succeeded();
}

async fn delete_pods(setup: &Setup, image: &str) {
    let of = |pod: &Pod| alive(pod) && function(pod).image.as_ref().is_some_and(|of| of.starts_with(image));
    for pod in setup.pods().await.iter().filter(|pod| of(pod)) {
        setup.delete(pod, &DeleteParams::default()).await;
    }
    let gone = |pods: &[Pod]| (!pods.iter().any(of)).then_some(());
    setup.namespace.wait_until("the pods are gone", gone).await;
}
