//! How often registries are asked.

use futures_util::future::join_all;
use porch_fn_tests::registry::Kind;

use super::*;

const IMAGES: usize = 50;
const CALLS: usize = 1000;
/// Of which pods start at once: the node has few cores.
const AT_A_TIME: usize = 10;
/// What one image may cost.
const MOST: usize = 3;

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_thousand_first_calls_cost_three_requests_per_image_and_warm_ones_none() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let proxy = stand.proxy(&place, Auth::Open).await;
    // The node's own pulls go past the proxy.
    node::instead(&stand.own, proxy.address(), &place.registry.address().to_string());
    let mut images = Vec::new();
    for number in 0..IMAGES {
        let name = format!("many/function-{number}:v1");
        place.push(&name, &format!("word-{number}")).await;
        images.push(proxy.image(&name));
    }
    let flags =
        [insecure(proxy.address()), "--image-metadata-ttl=1h".into(), "--pod-ready-timeout=5m".into()];
    let (runner, client) = stand.runner(&flags).await;

    let all = async |what: &str| {
        let start = Instant::now();
        for group in images.chunks(AT_A_TIME) {
            let calls = group.iter().flat_map(|image| std::iter::repeat_n(image, CALLS / IMAGES));
            let answers = join_all(calls.map(|image| client.call(image, INPUT))).await;
            assert!(answers.iter().all(|answer| answer.output() == INPUT));
        }
        let asked = proxy.counts();
        let most =
            asked.iter().filter(|(repository, _)| !repository.is_empty()).map(|(_, count)| *count).max();
        let total: usize = asked.values().sum();
        let (most, took) = (most.unwrap_or_default(), start.elapsed());
        let manifests = proxy.count(Kind::Manifest);
        let blobs = proxy.count(Kind::Blob);
        figure(&format!(
            "{CALLS} {what} calls over {IMAGES} images in {took:.1?}: {total} registry requests so far ({manifests} \
             manifests, {blobs} blobs), at most {most} for one image"
        ));
        (total, most)
    };
    let (first, most) = all("first").await;
    assert!(most <= MOST, "{:?}", proxy.counts());
    assert!(first <= MOST * IMAGES, "{:?}", proxy.counts());
    assert!(first >= IMAGES, "the runner asked elsewhere: {:?}", proxy.counts());
    assert_eq!(all("warm").await.0, first, "{:?}", proxy.asked());
    drop((runner, place));
    // So many pods take longer to go than a namespace that is dropped waits for.
    stand.namespace.finish().await;
}
