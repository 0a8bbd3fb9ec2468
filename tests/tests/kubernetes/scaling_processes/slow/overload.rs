//! Four times as many calls as can be served: as many are served as before, and the others are told at once.
//!
//! A function sleeps for most of its time, and few calls run at once, so that calls and not the machine's processors are
//! what there is too much of. A runner lets 2 calls of a function run and 4 wait for those: 4 calls at 4 a second wait for
//! one second at most. The machine must have processors to spare all the same: 50 ms are little.

use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::{Failure, Plan};
use porch_fn_tests::process::figure;
use porch_fn_tests::scaling::{Tier, Wish, resident};
use tokio::time::{Instant, interval, sleep};
use tonic::Code;

use super::wish;

const SLEEP: Duration = Duration::from_millis(500);
const FLAGS: [&str; 2] = ["--max-concurrent-per-pod=2", "--max-queue-per-function=4"];
/// Enough for every pod of every runner to be busy: 24 calls run or wait at most.
const CALLERS: usize = 20;
const IMAGES: usize = 2;
const OVER: f64 = 4.0;
const LASTING: Duration = Duration::from_mins(1);
/// Bytes that each call sends and gets back.
const SIZE: usize = 16 * 1024;

const GOODPUT: f64 = 0.9;
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
const RECOVERED_WITHIN: Duration = Duration::from_secs(2);
/// What any process may grow by. 24 calls wait or run at most, with less than 1 MiB; 60 times as much is sent.
const GROWTH: u64 = 16 * 1024 * 1024;

#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn an_overload_is_served_up_to_capacity_and_the_rest_refused_at_once() {
    let cluster = Cluster::connect().await;
    let tier = Tier::start(&cluster, Wish { runner: &FLAGS, ..wish(2, IMAGES) }).await;
    let line = format!("# {}\n", "x".repeat(125));
    let sleeps = format!("kind: ResourceList\n# test-sleep-ms: {}\n", SLEEP.as_millis());
    let input = sleeps + &line.repeat(SIZE / line.len());
    let clients: Vec<_> = (0..2).map(|router| tier.client(router)).collect();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        rounds.push(round(&tier, &clients, &input).await);
    }
    rounds.sort();
    let normal = rounds[2];

    let load = tier.load(Plan::callers(CALLERS, &tier.images).input(input.as_str()));
    // The router learns how much demand there is.
    sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    sleep(Duration::from_secs(15)).await;
    let (end, report) = (Instant::now(), load.stop().await);
    let time = start..end;
    let served = report.latencies(|call| call.failure.is_none() && time.contains(&(call.began + call.took)));
    let capacity = rate(served.count(), end - start);
    figure(&format!("capacity: {capacity:.0} calls a second, by {CALLERS} callers: {report}"));
    let at_rest = memory(&tier);

    let plan = Plan::per_second(OVER * capacity, &tier.images).input(input.as_str());
    let load = tier.load(plan.longest(LASTING * 2));
    let start = Instant::now();
    let mut most = at_rest.clone();
    let mut looks = interval(Duration::from_millis(250));
    while start.elapsed() < LASTING {
        looks.tick().await;
        most = most.iter().zip(memory(&tier)).map(|(most, now)| now.max(*most)).collect();
    }
    let end = Instant::now();
    let recovery = async {
        loop {
            let began = end.elapsed();
            if round(&tier, &clients, &input).await <= normal * 3 / 2 {
                return began;
            }
        }
    };
    let (report, recovered) = tokio::join!(load.stop(), recovery);

    let good = report.latencies(|call| call.failure.is_none());
    let refused = report.latencies(|call| call.failure.is_some());
    let goodput = rate(good.count(), LASTING);
    let sent = rate(report.calls.len(), LASTING);
    figure(&format!("{OVER:.0} × capacity for {LASTING:?}: {sent:.0} calls a second"));
    figure(&format!(
        "served: {goodput:.0} a second, {:.0} % of capacity: {good}",
        100.0 * goodput / capacity
    ));
    figure(&format!("refused: {refused}; {} after {REFUSED_WITHIN:?}", refused.above(REFUSED_WITHIN)));
    let mib = |bytes: &u64| bytes / 1024 / 1024;
    for (name, (before, most)) in
        ["router", "router", "runner", "runner"].iter().zip(at_rest.iter().zip(&most))
    {
        figure(&format!("memory of a {name}: {} MiB before, {} MiB at most", mib(before), mib(most)));
    }
    figure(&format!("calls take {normal:.0?} normally, and again {recovered:.1?} after the overload's end"));

    assert!(goodput >= GOODPUT * capacity, "{goodput:.0} of {capacity:.0}");
    let other = |failure: &Failure| *failure != Failure::Status(Code::ResourceExhausted);
    let others: Vec<_> = report.calls.iter().filter_map(|call| call.failure).filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(refused.count() > 0, "there was no overload");
    assert!(refused.percentile(1.0) <= REFUSED_WITHIN, "{refused}");
    let grown = at_rest.iter().zip(&most).map(|(before, most)| most - before);
    assert!(grown.max().unwrap() <= GROWTH, "{at_rest:?} {most:?}");
    assert!(recovered <= RECOVERED_WITHIN, "{recovered:?}");
    tier.finish().await;
}

/// One call of each function at each router, all at once; the longest time that one took, and for ever when one
/// failed.
async fn round(tier: &Tier, clients: &[Client], input: &str) -> Duration {
    let calls = clients.iter().flat_map(|client| {
        tier.images.iter().map(async move |image| {
            let began = Instant::now();
            let answer = client.call(image, input.to_owned()).await;
            if answer.code == Code::Ok { began.elapsed() } else { Duration::MAX }
        })
    });
    join_all(calls).await.into_iter().max().unwrap_or_default()
}

/// The resident memory of routers and runners.
fn memory(tier: &Tier) -> Vec<u64> {
    tier.routers.iter().chain(tier.runners.iter().map(|runner| &runner.server)).map(resident).collect()
}

fn rate(calls: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(calls).unwrap()) / time.as_secs_f64()
}
