//! Four times as many calls as can be served: as many are served as before, and the others are told at once.
//!
//! A function sleeps for most of its time, and few calls run at once, so that calls and not the machine's processors are
//! what there is too much of. The machine must have processors to spare all the same: 50 ms are little.
//!
//! Twice: once the queue is what is full, with small messages, and once the bytes are, with large ones.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::Cluster;
use porch_fn_tests::load::{Call, Failure, Plan, Report};
use porch_fn_tests::process::figure;
use porch_fn_tests::scaling::{Tier, Wish, resident};
use tokio::time::{Instant, interval, sleep};
use tonic::Code;

use super::processes::wish;

/// What is overloaded, and by what.
struct Overload {
    /// What is full.
    what: &'static str,
    /// What a refusal names.
    limit: &'static str,
    /// Flags of the runners.
    flags: &'static [&'static str],
    /// Functions.
    images: usize,
    /// How long a call takes.
    sleeps: Duration,
    /// Bytes that each call sends and gets back.
    size: usize,
    /// Enough for every pod of every runner to be busy.
    callers: usize,
    /// What any process may grow by, in bytes.
    growth: u64,
}

const OVER: f64 = 4.0;
const LASTING: Duration = Duration::from_mins(1);
const GOODPUT: f64 = 0.9;
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
const RECOVERED_WITHIN: Duration = Duration::from_secs(2);

/// A runner lets 2 calls of a function run and 4 wait for those, so that none waits for longer than a second and a half.
/// 24 calls are in the runners at most.
#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn an_overload_of_calls_is_served_up_to_capacity_and_the_rest_refused_at_once() {
    overload(&Overload {
        what: "queues",
        limit: "--max-queue-per-function",
        flags: &["--max-concurrent-per-pod=2", "--max-queue-per-function=4"],
        images: 2,
        sleeps: Duration::from_millis(500),
        size: 16 * 1024,
        callers: 20,
        growth: 32 * 1024 * 1024,
    })
    .await;
}

/// A runner holds 2 MiB of requests at most, and queues without end.
#[tokio::test]
#[ignore = "needs a cluster, takes minutes; tests/scaling runs it"]
async fn an_overload_of_bytes_is_served_up_to_capacity_and_the_rest_refused_at_once() {
    overload(&Overload {
        what: "bytes",
        limit: "--max-inflight-bytes",
        flags: &["--max-request-body-size=524288", "--max-inflight-bytes=2097152"],
        images: 4,
        sleeps: Duration::from_secs(1),
        size: 256 * 1024,
        callers: 8,
        growth: 32 * 1024 * 1024,
    })
    .await;
}

async fn overload(over: &Overload) {
    let Overload { what, images, sleeps, size, callers, .. } = *over;
    let cluster = Cluster::connect().await;
    let tier = Tier::start(&cluster, Wish { runner: over.flags, ..wish(2, images) }).await;
    let line = format!("# {}\n", "x".repeat(125));
    let header = format!("kind: ResourceList\n# test-sleep-ms: {}\n", sleeps.as_millis());
    let input = header + &line.repeat(size / line.len());
    let clients: Vec<_> = (0..2).map(|router| tier.client(router)).collect();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        rounds.push(round(&tier, &clients, &input).await);
    }
    rounds.sort();
    let normal = rounds[2];

    let load = tier.load(Plan::callers(callers, &tier.images).input(input.as_str()));
    // The router learns how much demand there is.
    sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    sleep(Duration::from_secs(15)).await;
    let (end, report) = (Instant::now(), load.stop().await);
    let capacity = served(&report, &(start..end));
    figure(&format!("{what}: capacity {capacity:.0} calls a second, by {callers} callers: {report}"));
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
    let goodput = served(&report, &(start..end));
    let sent = rate(report.calls.len(), LASTING);
    figure(&format!("{what}: {OVER:.0} × capacity for {LASTING:?}: {sent:.0} calls a second"));
    figure(&format!(
        "{what}: served: {goodput:.0} a second, {:.0} % of capacity: {good}",
        100.0 * goodput / capacity
    ));
    figure(&format!(
        "{what}: refused: {refused}; {} after {REFUSED_WITHIN:?}",
        refused.above(REFUSED_WITHIN)
    ));
    let mib = |bytes: &u64| bytes / 1024 / 1024;
    for (name, (before, most)) in
        ["router", "router", "runner", "runner"].iter().zip(at_rest.iter().zip(&most))
    {
        figure(&format!("{what}: memory of a {name}: {} MiB before, {} MiB at most", mib(before), mib(most)));
    }
    figure(&format!(
        "{what}: calls take {normal:.0?} normally, and again {recovered:.1?} after the overload's end"
    ));

    assert!(goodput >= GOODPUT * capacity, "{goodput:.0} of {capacity:.0}");
    let other = |failure: &Failure| *failure != Failure::Status(Code::ResourceExhausted);
    let others: Vec<_> = report.calls.iter().filter_map(|call| call.failure).filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
    let texts = report.texts();
    assert!(texts.iter().all(|text| text.contains(over.limit)), "{texts:?}");
    assert!(refused.count() > 0, "there was no overload");
    assert!(refused.percentile(1.0) <= REFUSED_WITHIN, "{refused}");
    let grown = at_rest.iter().zip(&most).map(|(before, most)| most - before);
    assert!(grown.max().unwrap() <= over.growth, "{at_rest:?} {most:?}");
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

/// Calls a second that were answered well in this time, whenever they were sent.
fn served(report: &Report, time: &Range<Instant>) -> f64 {
    let ended = |call: &Call| call.failure.is_none() && time.contains(&(call.began + call.took));
    rate(report.latencies(ended).count(), time.end - time.start)
}

fn rate(calls: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(calls).unwrap()) / time.as_secs_f64()
}
