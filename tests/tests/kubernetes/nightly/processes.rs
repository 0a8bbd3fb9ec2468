//! Routers and runners as processes on machines of their own: see `porch_fn_tests::scaling`.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::Plan;
use porch_fn_tests::process::{eventually, figure, is_healthy};
use porch_fn_tests::scaling::{Discovery, Host, Tier, Wish};
use tokio::time::sleep;

const CALLERS: usize = 64;

/// Two routers, and what a test asks for otherwise. A pod is kept for as long as its last call might have taken, so the
/// default of 5 minutes would be waited for.
pub(super) fn wish(runners: usize, images: usize) -> Wish<'static> {
    Wish {
        discovery: Discovery::Slices,
        images,
        runners,
        routers: 2,
        runner: &[],
        router: &["--router-count=2", "--request-timeout=1m"],
    }
}

/// Each router knows three of four runners, and so do the runners: of many functions there are two owners.
#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn routers_with_different_views_keep_to_the_limit_of_pods() {
    const LIMIT: usize = 2;
    const IMAGES: usize = 16;
    let cluster = Cluster::connect().await;
    let limit = format!("--max-parallel-pods-per-function={LIMIT}");
    let flags = [limit.as_str(), "--max-waitlist-length=1", "--scan-interval=1s"];
    let mut tier = Tier::cold(&cluster, &Wish { runner: &flags, ..wish(0, IMAGES) }).await;
    let hosts = join_all((0..4).map(|_| Host::start(&tier.sandbox))).await;
    let view = |seen: Range<usize>| {
        let names: Vec<_> = hosts[seen].iter().map(|host| format!("{}:9445", host.address())).collect();
        format!("static:///{}", names.join(","))
    };
    let views = [view(0..3), view(1..4)];
    let started = hosts.into_iter().zip([0, 0, 1, 1]).map(|(host, side)| {
        let (tier, peers) = (&tier, format!("--peers={}", views[side]));
        async move { tier.runner_on(host, &[&peers]).await }
    });
    tier.runners = join_all(started).await;
    for view in &views {
        tier.add_router(&[&format!("--runners={view}")]).await;
    }
    for router in &tier.routers {
        eventually("the router knows its runners as well", async || {
            let page = router.json("/shards").await;
            let shards = page["shards"].as_array()?;
            (shards.len() == 3 && shards.iter().all(is_healthy)).then_some(())
        })
        .await;
    }

    // The first calls come from both sides at once. When all pods have served, calls go on for half a minute.
    let load = tier.load(Plan::callers(CALLERS, &tier.images).longest(Duration::from_mins(5)));
    let all = async || (tier.pods_made() >= LIMIT * IMAGES).then_some(());
    eventually("each function has as many pods as it may have", all).await;
    let all = async || (load.answered() >= 10 * CALLERS).then_some(());
    eventually("all pods serve", all).await;
    sleep(Duration::from_secs(30)).await;
    let report = load.stop().await;
    let (most, made) = (tier.most_pods_of_one(), tier.pods_made());
    figure(&format!(
        "two routers with different views, {CALLERS} callers on {IMAGES} functions: {report}; at most {most} pods of a \
         function at once, {made} in all"
    ));
    report.all_succeeded();
    assert_eq!(most, LIMIT, "the limit is reached and kept");
    assert!(made <= LIMIT * IMAGES, "{made} pods");
    tier.finish().await;
}
