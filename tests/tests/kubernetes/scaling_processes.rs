//! Routers and runners that come, go, die and hang under load: callers notice nothing, and no warm pod is lost.
//!
//! Here are the short forms; `slow` has those of `tests/scaling`. Processes stand in for the pods of Deployments, on
//! machines of their own: see `porch_fn_tests::scaling`.

mod slow;

use std::ops::Range;
use std::time::Duration;

use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::Plan;
use porch_fn_tests::process::figure;
use porch_fn_tests::scaling::{Discovery, Listed, Tier, Wish};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

/// What 99 of 100 callers wait for at most while a runner is killed, hangs or cannot be reached.
const P99_WITH_A_FAULT: Duration = Duration::from_secs(6);

/// A pod is kept for as long as its last call might have taken, so the default of 5 minutes would be waited for.
const REQUEST_TIMEOUT: &str = "--request-timeout=1m";

/// Two routers, and what a test asks for otherwise.
fn wish(runners: usize, images: usize) -> Wish<'static> {
    Wish {
        discovery: Discovery::Slices,
        images,
        runners,
        routers: 2,
        runner: &[],
        router: &["--router-count=2", REQUEST_TIMEOUT],
    }
}

/// A tier that is scaled.
struct Scale {
    discovery: Discovery,
    callers: usize,
    images: usize,
    /// Numbers of runners, one after the other, and how long each stays.
    steps: Vec<(usize, Duration)>,
    /// The time to live of function pods, if their end is waited for.
    ttl: Option<&'static str>,
}

async fn scale(what: &str, scale: Scale) {
    let cluster = Cluster::connect().await;
    let ttl = scale.ttl.map(|ttl| format!("--pod-ttl={ttl}"));
    let flags: Vec<_> =
        ttl.iter().map(String::as_str).chain(["--scan-interval=5s", REQUEST_TIMEOUT]).collect();
    let first = scale.steps[0].0;
    let wish = Wish { discovery: scale.discovery, runner: &flags, ..wish(first, scale.images) };
    let mut tier = Tier::start(&cluster, wish).await;
    assert_eq!(tier.pods_made(), scale.images, "each function has one pod");

    let load = tier.load(Plan::callers(scale.callers, &tier.images).longest(Duration::from_mins(10)));
    let began = Instant::now();
    let mut sizes = Vec::new();
    for (runners, lasting) in scale.steps {
        match tier.runners.len() {
            now if now < runners => tier.add(runners - now).await,
            now => tier.remove(runners..now).await,
        }
        sizes.push(tier.runners.len().to_string());
        sleep(lasting).await;
    }
    let (report, lasted) = (load.stop().await, began.elapsed());
    let more = tier.pods_made() - scale.images;
    figure(&format!(
        "{what}: runners {} under {} callers on {} functions for {lasted:.0?}: {report}; {more} pods made after warm-up",
        sizes.join("→"),
        scale.callers,
        scale.images,
    ));
    report.all_succeeded();
    assert_eq!(report.per_image().len(), scale.images, "each function was called");
    assert_eq!(more, 0, "pods were made in vain");
    assert_eq!(tier.most_pods_of_one(), 1);
    if scale.ttl.is_some() {
        let start = Instant::now();
        tier.all_collected(Duration::from_mins(4)).await;
        assert_eq!(tier.pods_made(), scale.images, "pods were made without a call");
        figure(&format!("{what}: 0 pods left {:.0?} after the last call", start.elapsed()));
    }
    tier.finish().await;
}

/// One runner is killed, the next hangs, a third is cut off.
async fn faults(what: &str, callers: usize, images: usize, lasting: Duration) {
    let cluster = Cluster::connect().await;
    let mut tier = Tier::start(&cluster, wish(4, images)).await;
    let load = tier.load(Plan::callers(callers, &tier.images).longest(Duration::from_mins(10)));
    let calm = lasting / 4;
    let own: Vec<_> = (0..3).map(|runner| tier.owned_by(runner)).collect();
    let mut faults: Vec<(&str, Range<Instant>, &[usize])> = Vec::new();
    let start = Instant::now();
    sleep(calm).await;
    faults.push(("has no fault", start..Instant::now(), &own[0]));

    let start = Instant::now();
    tier.runners[0].server.signal(Signal::KILL);
    tier.runners[0].server.ended().await;
    // The kubelet notices within a second and starts it again later.
    tier.runners[0].listed = Listed::NotReady;
    tier.publish().await;
    sleep(lasting / 2).await;
    tier.restart(0).await;
    tier.runners[0].listed = Listed::Ready;
    tier.publish().await;
    sleep(lasting / 2).await;
    faults.push(("is killed", start..Instant::now(), &own[0]));

    let start = Instant::now();
    tier.runners[1].server.signal(Signal::STOP);
    sleep(lasting).await;
    tier.runners[1].server.signal(Signal::CONT);
    faults.push(("is stopped", start..Instant::now(), &own[1]));
    sleep(calm).await;

    let start = Instant::now();
    tier.runners[2].host.cut(&tier.sandbox).await;
    sleep(lasting).await;
    tier.runners[2].host.join(&tier.sandbox).await;
    faults.push(("is cut off", start..Instant::now(), &own[2]));
    sleep(calm).await;

    let report = load.stop().await;
    let more = tier.pods_made() - images;
    figure(&format!(
        "{what}: {callers} callers on {images} functions: {report}; {more} pods made after warm-up"
    ));
    for (fault, time, own) in &faults {
        let own = report.during(time, |call| own.contains(&call.image));
        figure(&format!("{what}: one of 4 runners {fault}: {}", report.during(time, |_| true)));
        figure(&format!("{what}: one of 4 runners {fault}, its own functions: {own}"));
    }
    report.all_succeeded();
    for (fault, time, own) in &faults {
        let own = report.during(time, |call| own.contains(&call.image));
        assert!(own.count() > 0, "nobody calls the functions of the runner that {fault}");
        assert!(own.percentile(0.99) <= P99_WITH_A_FAULT, "{fault}: {own}");
    }
    assert_eq!(tier.most_pods_of_one(), 1);
    tier.finish().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn scaling_out_and_in_loses_no_call_and_no_warm_pod() {
    let each = Duration::from_secs(5);
    let steps = vec![(2, each), (4, each), (1, each)];
    scale("short", Scale { discovery: Discovery::Slices, callers: 16, images: 8, steps, ttl: None }).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_runner_that_dies_hangs_or_is_cut_off_costs_no_call() {
    faults("short", 16, 8, Duration::from_secs(8)).await;
}
