//! Sends four times as many calls as the fleet can serve. The fleet must serve as many calls as
//! before, and refuse the others at once.
//!
//! The functions mostly sleep, and few calls run at once. So the calls exceed the runners' limits,
//! not the machine's CPU.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Discovery};
use porch_fn_tests::load::{Call, Failure, Plan, Report};
use porch_fn_tests::process::figure;
use porch_fn_tests::scaling::Tier;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::rig::sleeping;

const IMAGES: usize = 2;
const LIMIT: &str = "--max-queue-per-function";
/// A runner runs 2 calls of a function at once, and 4 more may wait. The last of them waits about
/// 1 s, so its answer comes after about 1.5 s.
const FLAGS: [&str; 2] = ["--max-concurrent-per-pod=2", "--max-queue-per-function=4"];
const SLEEPS: Duration = Duration::from_millis(500);
/// Enough callers to keep all pods of all runners busy. The runners hold at most 24 calls.
const CALLERS: usize = 20;
/// The load, as a multiple of the capacity.
const OVERLOAD: f64 = 4.0;
const OVERLOAD_TIME: Duration = Duration::from_secs(30);
/// The minimum rate of successful calls during the overload, as a part of the capacity.
const MIN_GOODPUT: f64 = 0.9;
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
const RECOVERED_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly runs it"]
async fn an_overload_of_calls_is_served_up_to_capacity_and_the_rest_refused_at_once() {
    let cluster = Cluster::connect().await;
    let tier = Tier::start(&cluster, Discovery::EndpointSlices, 2, IMAGES, &FLAGS).await;
    let clients: Vec<_> = (0..2).map(|router| tier.client(router)).collect();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        rounds.push(round(&tier, &clients).await);
    }
    rounds.sort();
    let normal = rounds[2];

    let load = tier.load(Plan { input: sleeping(SLEEPS), ..Plan::callers(CALLERS, &tier.images) });
    // The router needs time to measure the demand.
    sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    sleep(Duration::from_secs(15)).await;
    let capacity = served(&load.stop().await, &(start..Instant::now()));

    let plan = Plan::per_second(OVERLOAD * capacity, &tier.images);
    let load = tier.load(Plan { input: sleeping(SLEEPS), max_duration: OVERLOAD_TIME * 2, ..plan });
    let start = Instant::now();
    sleep(OVERLOAD_TIME).await;
    let end = Instant::now();
    let recovery = async {
        loop {
            let began = end.elapsed();
            if round(&tier, &clients).await <= normal * 3 / 2 {
                return began;
            }
        }
    };
    let (report, recovered) = tokio::join!(load.stop(), recovery);

    let refused = report.latencies(|call| call.failure.is_some());
    let goodput = served(&report, &(start..end));
    figure(&format!(
        "{OVERLOAD:.0} × a capacity of {capacity:.0} calls a second for {OVERLOAD_TIME:?}: {goodput:.0} a second served, \
         refused: {refused}; calls take {normal:.0?} normally, and again {recovered:.1?} after the overload"
    ));
    assert!(goodput >= MIN_GOODPUT * capacity, "{goodput:.0} of {capacity:.0}");
    let other = |failure: &Failure| *failure != Failure::Status(Code::ResourceExhausted);
    let others: Vec<_> = report.calls.iter().filter_map(|call| call.failure).filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
    let texts = &report.texts;
    assert!(texts.iter().all(|text| text.contains(LIMIT)), "{texts:?}");
    assert!(refused.count() > 0, "there was no overload");
    assert!(refused.percentile(1.0) <= REFUSED_WITHIN, "{refused}");
    assert!(recovered <= RECOVERED_WITHIN, "{recovered:?}");
    tier.finish().await;
}

/// Calls each function through each router, all at once. Returns the longest duration, or
/// `Duration::MAX` if a call failed.
async fn round(tier: &Tier, clients: &[Client]) -> Duration {
    let calls = clients.iter().flat_map(|client| {
        tier.images.iter().map(async move |image| {
            let began = Instant::now();
            let answer = client.call(image, sleeping(SLEEPS)).await;
            if answer.code == Code::Ok { began.elapsed() } else { Duration::MAX }
        })
    });
    join_all(calls).await.into_iter().max().unwrap_or_default()
}

/// The successful calls per second that ended in this time. They may have been sent earlier.
fn served(report: &Report, time: &Range<Instant>) -> f64 {
    let ended = |call: &Call| call.failure.is_none() && time.contains(&(call.began + call.took));
    let calls = u32::try_from(report.latencies(ended).count()).unwrap();
    f64::from(calls) / (time.end - time.start).as_secs_f64()
}
