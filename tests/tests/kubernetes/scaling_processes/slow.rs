//! What takes minutes: `tests/scaling` runs it.

mod overload;

use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::Plan;
use porch_fn_tests::process::{eventually, figure};
use porch_fn_tests::scaling::{Discovery, Host, Listed, Runner, Tier, Wish};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Scale, faults, scale, wish};

const CALLERS: usize = 64;
const IMAGES: usize = 40;
/// The shortest: a pod's lifetime is at least four times the clocks' skew.
const TTL: &str = "2m";

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn scaling_under_load_leaves_no_orphan_by_slices() {
    long_scale("long, by EndpointSlices", Discovery::Slices).await;
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn scaling_under_load_leaves_no_orphan_by_dns() {
    long_scale("long, by DNS", Discovery::Dns).await;
}

async fn long_scale(what: &str, discovery: Discovery) {
    let seconds = Duration::from_secs;
    let steps = vec![(3, seconds(20)), (6, seconds(50)), (2, seconds(50))];
    let ttl = Some(TTL);
    scale(what, Scale { discovery, callers: CALLERS, images: IMAGES, steps, ttl }).await;
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn a_rolling_restart_of_everything_loses_no_call() {
    const RUNNERS: usize = 4;
    const CALLS: usize = 50_000;
    let cluster = Cluster::connect().await;
    let mut tier = Tier::start(&cluster, wish(RUNNERS, IMAGES)).await;
    let load = tier.load(Plan::callers(CALLERS, &tier.images).longest(Duration::from_mins(40)));
    let began = Instant::now();
    for _ in 0..RUNNERS {
        tier.add(1).await;
        tier.remove(0..1).await;
    }
    for _ in 0..tier.routers.len() {
        tier.add_router(&[]).await;
        tier.remove_router().await;
    }
    let restarted = began.elapsed();
    let answered = load.answered();
    while load.answered() < CALLS && began.elapsed() < Duration::from_mins(30) {
        // Once more, as long as calls are wanted.
        tier.add(1).await;
        tier.remove(0..1).await;
        tier.add_router(&[]).await;
        tier.remove_router().await;
    }
    let report = load.stop().await;
    let more = tier.pods_made() - IMAGES;
    figure(&format!(
        "rolling restart of {RUNNERS} runners and 2 routers in {restarted:.0?} ({answered} calls), then over again: \
         {report}; {more} pods made after warm-up"
    ));
    report.all_succeeded();
    assert!(report.succeeded >= CALLS, "{}", report.succeeded);
    assert_eq!(more, 0, "pods were made in vain");
    tier.finish().await;
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn a_runner_that_dies_hangs_or_is_cut_off_for_long_costs_no_call() {
    faults("long", CALLERS, IMAGES, Duration::from_secs(20)).await;
}

/// Each router knows three of four runners, and so do the runners: of many functions there are two owners.
#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn routers_with_different_views_keep_to_the_limit_of_pods() {
    const LIMIT: usize = 2;
    const IMAGES: usize = 16;
    let cluster = Cluster::connect().await;
    let limit = format!("--max-parallel-pods-per-function={LIMIT}");
    let flags = [limit.as_str(), "--max-waitlist-length=1", "--scan-interval=1s"];
    let mut tier = Tier::cold(&cluster, &Wish { runner: &flags, ..wish(0, IMAGES) }).await;
    let hosts = join_all((0..4).map(|_| Host::start(&tier.sandbox))).await;
    let view = |seen: std::ops::Range<usize>| {
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
            (shards.len() == 3 && shards.iter().all(|shard| shard["state"] == "healthy")).then_some(())
        })
        .await;
    }

    // The first calls come from both sides at once. When all pods have served, calls go on for half a minute.
    let load = tier.load(Plan::callers(CALLERS, &tier.images).longest(Duration::from_mins(5)));
    let all = async || (tier.pods_made() >= LIMIT * IMAGES).then_some(());
    eventually("each function has as many pods as it may have", all).await;
    let all = async || (load.answered() >= 10 * CALLERS).then_some(());
    eventually("all pods serve", all).await;
    let (start, before) = (Instant::now(), load.answered());
    sleep(Duration::from_secs(30)).await;
    let (end, after) = (Instant::now(), load.answered());
    let report = load.stop().await;
    let (most, made) = (tier.most_pods_of_one(), tier.pods_made());
    figure(&format!(
        "two routers with different views, {CALLERS} callers on {IMAGES} functions: {report}; at most {most} pods of a \
         function at once, {made} in all"
    ));
    figure(&format!(
        "in 30 s with all pods: {} calls, {}",
        after - before,
        report.during(&(start..end), |_| true)
    ));
    report.all_succeeded();
    assert_eq!(most, LIMIT, "the limit is reached and kept");
    assert!(made <= LIMIT * IMAGES, "{made} pods");
    tier.finish().await;
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn a_runner_that_flaps_delays_few_of_its_own_calls() {
    flapping("listed in EndpointSlices", false).await;
}

/// Nobody tells the routers: they find out by their connections.
#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn a_runner_of_a_fixed_list_that_flaps_delays_few_of_its_own_calls() {
    flapping("a fixed list", true).await;
}

/// A call counts as delayed when it takes longer than a second: a warm one takes some milliseconds. Calls come at a
/// steady pace, so that a delay does not keep others from being made.
async fn flapping(what: &str, fixed: bool) {
    const DELAYED: Duration = Duration::from_secs(1);
    const PER_MILLE: usize = 5;
    const UP: Duration = Duration::from_secs(20);
    const DOWN: Duration = Duration::from_secs(40);
    const LASTING: Duration = Duration::from_mins(5);
    let cluster = Cluster::connect().await;
    let mut tier = Tier::start(&cluster, wish(3, IMAGES)).await;
    if fixed {
        let names: Vec<_> = tier.runners.iter().map(Runner::name).collect();
        let fixed = format!("--runners=static:///{}", names.join(","));
        for _ in 0..tier.routers.len() {
            tier.add_router(&[&fixed]).await;
            tier.remove_router().await;
        }
        tier.know_each_other().await;
    }
    let own = tier.owned_by(0);
    assert!(!own.is_empty(), "the runner owns some functions");
    let load = tier.load(Plan::per_second(100.0, &tier.images).longest(LASTING * 2));
    let began = Instant::now();
    let mut kills = 0;
    while began.elapsed() < LASTING {
        sleep(UP).await;
        tier.runners[0].server.signal(Signal::KILL);
        tier.runners[0].server.ended().await;
        let down = Instant::now();
        kills += 1;
        list(&mut tier, Listed::NotReady).await;
        sleep_until(down + DOWN).await;
        tier.restart(0).await;
        list(&mut tier, Listed::Ready).await;
    }
    let report = load.stop().await;
    let own = report.latencies(|call| own.contains(&call.image));
    let more = tier.pods_made() - IMAGES;
    figure(&format!(
        "{what}: a runner killed {kills} times in {:.0?}, all: {report}; {more} pods made after warm-up",
        began.elapsed()
    ));
    figure(&format!(
        "{what}: calls of its own functions: {own}; {} took longer than {DELAYED:?}",
        own.above(DELAYED)
    ));
    report.all_succeeded();
    assert!(own.above(DELAYED) * 1000 <= own.count() * PER_MILLE, "{own}");
    tier.finish().await;
}

async fn list(tier: &mut Tier, listed: Listed) {
    tier.runners[0].listed = listed;
    tier.publish().await;
}
