//! Faults of a whole fleet under load, with discovery by DNS and by `EndpointSlices`. No call
//! fails, and no runner gets more than twice its fair share of the calls for longer than two
//! seconds. tests/processes/cluster.rs tests faults of runners in a fixed list.
//!
//! Each kind of discovery prints one table of `docs/fleet-faults.md`.

mod shares;

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::cluster::{Cluster, Discovery};
use porch_fn_tests::load::Plan;
use porch_fn_tests::process::figure;
use porch_fn_tests::scaling::{Listed, Tier};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use self::shares::Shares;

const CALLERS: usize = 64;
const IMAGES: usize = 40;
const RUNNERS: usize = 5;
/// The runners that are killed at the same time.
const KILLED: Range<usize> = 0..3;
/// The runners' port, as in [`Tier`].
const PORT: u16 = 9445;
/// How long the load runs before a fault.
const BEFORE: Duration = Duration::from_secs(3);
/// How long the load runs after a fault, so that late effects are seen.
const AFTER: Duration = Duration::from_secs(15);
/// The largest allowed share of a runner, as a multiple of its fair share.
const MAX_SHARE: f64 = 2.0;

#[derive(Clone, Copy)]
enum Fault {
    DiscoveryEmpty,
    DiscoveryFlaps,
    NetworkBlip,
    KilledInTurn,
    ThreeKilled,
    RouterRestarts,
}

/// The results of one fault.
struct Row {
    title: &'static str,
    failed: String,
    calls: usize,
    share: Option<f64>,
    p99: Duration,
    slowest: Duration,
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/run nightly runs it"]
async fn faults_with_dns_while_a_runner_is_added() {
    matrix("dns", Discovery::Dns, true).await;
}

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/run nightly runs it"]
async fn faults_with_endpoint_slices() {
    matrix("EndpointSlices", Discovery::EndpointSlices, false).await;
}

async fn matrix(name: &str, discovery: Discovery, scale_out: bool) {
    let cluster = Cluster::connect().await;
    let mut tier = Tier::start(&cluster, discovery, RUNNERS, IMAGES, &[]).await;
    let mut rows = Vec::new();
    for (fault, title) in Fault::ALL {
        let row = under_load(&mut tier, fault, title, scale_out).await;
        figure(&format!("{name}: {}", row.line()));
        rows.push(row);
        if tier.runners.len() > RUNNERS {
            tier.remove(RUNNERS..tier.runners.len()).await;
        }
        tier.wait_all_healthy().await;
    }
    figure(&format!("{name}, {CALLERS} callers, {IMAGES} functions, {RUNNERS} runners, 2 routers:"));
    figure("| Fault | Failed | Calls | Largest share / fair share | p99 | Slowest |");
    figure("|---|---|---|---|---|---|");
    for row in &rows {
        figure(&row.line());
    }
    for Row { title, failed, share, .. } in &rows {
        assert_eq!(failed, "0", "{title}");
        let share = share.unwrap_or_default();
        assert!(share <= MAX_SHARE, "{title}: {share:.2} times the fair share");
    }
    tier.finish().await;
}

async fn under_load(tier: &mut Tier, fault: Fault, title: &'static str, scale_out: bool) -> Row {
    let mut shares = Shares::start(&tier.routers, RUNNERS);
    let load = tier.load(Plan::callers(CALLERS, &tier.images));
    sleep(BEFORE).await;
    fault.inject(tier, scale_out, &mut shares).await;
    sleep(AFTER).await;
    let (share, report) = (shares.largest().await, load.stop().await);
    let all = report.latencies(|_| true);
    let failed: usize = report.failed.values().sum();
    let failed = if failed == 0 { "0".to_owned() } else { format!("{failed}: {:?}", report.texts) };
    Row { title, failed, calls: all.count(), share, p99: all.percentile(0.99), slowest: all.percentile(1.0) }
}

// === impl Fault ===

impl Fault {
    const ALL: [(Self, &str); 6] = [
        (Self::DiscoveryEmpty, "discovery empty for 10 s"),
        (Self::DiscoveryFlaps, "discovery flaps for 12 s"),
        (Self::NetworkBlip, "no packets to 5 of 5 runners for 5 s"),
        (Self::KilledInTurn, "5 of 5 runners killed one after another"),
        (Self::ThreeKilled, "3 of 5 runners killed at once"),
        (Self::RouterRestarts, "both routers replaced by SIGTERM"),
    ];

    /// Causes the fault and ends it. Records in `shares` how many runners can serve.
    async fn inject(self, tier: &mut Tier, scale_out: bool, shares: &mut Shares) {
        match self {
            Self::DiscoveryEmpty => {
                tier.publish_some(|_| false).await;
                sleep(Duration::from_secs(5)).await;
                add_unlisted(tier, scale_out).await;
                sleep(Duration::from_secs(5)).await;
                tier.publish().await;
            }
            Self::DiscoveryFlaps => {
                for round in 0..12 {
                    add_unlisted(tier, round == 6 && scale_out).await;
                    match round % 4 {
                        0 => tier.publish_some(|_| false).await,
                        1 => tier.publish_some(|place| place % 2 == 0).await,
                        2 => tier.publish().await,
                        _ => tier.publish_some(|place| place % 2 == 1).await,
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                tier.publish().await;
            }
            Self::NetworkBlip => cut_off(tier, scale_out, shares).await,
            // A function that uses too much memory has this effect, if the kernel kills each runner
            // that gets the call.
            Self::KilledInTurn => {
                shares.set_serving(RUNNERS - 1);
                for place in 0..RUNNERS {
                    tier.runners[place].server.kill().await;
                    tier.restart(place).await;
                    tier.publish().await;
                    sleep(Duration::from_secs(2)).await;
                    if place == RUNNERS / 2 && scale_out {
                        tier.add(1).await;
                    }
                }
                shares.set_serving(RUNNERS);
            }
            Self::ThreeKilled => kill_three(tier, scale_out, shares).await,
            Self::RouterRestarts => {
                for round in 0..2 {
                    tier.add_router().await;
                    shares.add_router(tier.routers.last().unwrap());
                    tier.remove_router().await;
                    if round == 0 && scale_out {
                        tier.add(1).await;
                    }
                }
            }
        }
    }
}

/// With `scale_out`, starts another runner. Discovery does not publish it yet.
async fn add_unlisted(tier: &mut Tier, scale_out: bool) {
    if scale_out {
        let runner = tier.runner().await;
        tier.runners.push(runner);
    }
}

/// Drops all packets between routers and runners for some seconds.
async fn cut_off(tier: &mut Tier, scale_out: bool, shares: &mut Shares) {
    let began = Instant::now();
    shares.set_serving(0);
    let hosts = tier.runners.iter().map(|runner| runner.host.cut_port(&tier.sandbox, PORT));
    join_all(hosts).await;
    sleep(Duration::from_secs(2)).await;
    if scale_out {
        tier.add(1).await;
    }
    sleep(Duration::from_secs(5).saturating_sub(began.elapsed())).await;
    let cut = tier.runners[..RUNNERS].iter().map(|runner| runner.host.join(&tier.sandbox));
    join_all(cut).await;
    shares.set_serving(RUNNERS);
}

/// Kills several runners at once, and restarts them one after the other.
async fn kill_three(tier: &mut Tier, scale_out: bool, shares: &mut Shares) {
    shares.set_serving(RUNNERS - KILLED.len());
    for runner in &tier.runners[KILLED] {
        runner.server.signal(Signal::KILL);
    }
    for runner in &mut tier.runners[KILLED] {
        runner.server.wait_exit().await;
        runner.listed = Listed::NotReady;
    }
    sleep(Duration::from_secs(1)).await;
    tier.publish().await;
    if scale_out {
        tier.add(1).await;
    }
    sleep(Duration::from_secs(5)).await;
    for place in KILLED {
        tier.restart(place).await;
        tier.runners[place].listed = Listed::Ready;
        tier.publish().await;
        sleep(Duration::from_secs(1)).await;
    }
    shares.set_serving(RUNNERS);
}

// === impl Row ===

impl Row {
    fn line(&self) -> String {
        let Self { title, failed, calls, share, p99, slowest } = self;
        let share = share.map_or_else(|| "–".to_owned(), |share| format!("{share:.2}"));
        format!("| {title} | {failed} | {calls} | {share} | {p99:.1?} | {slowest:.1?} |")
    }
}
