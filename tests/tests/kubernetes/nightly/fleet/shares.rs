//! The distribution of a load's calls over the runners, as counted by the routers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use porch_fn_tests::process::{Server, try_get};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often each router's counts are read.
const INTERVAL: Duration = Duration::from_millis(250);
/// Length of the windows in which shares are computed. Shorter peaks are averaged out.
const WINDOW: Duration = Duration::from_secs(2);
/// A window with fewer calls is ignored.
const MIN_CALLS: u64 = 200;

/// Reads the routers' counts until it is dropped.
pub(super) struct Shares {
    reading: JoinSet<()>,
    samples: Arc<Mutex<Vec<Sample>>>,
    /// When the number of serving runners changed, and the new number.
    serving: Vec<(Instant, usize)>,
}

/// The calls that one router sent to each runner since the previous sample.
struct Sample {
    at: Instant,
    calls: BTreeMap<String, u64>,
}

impl Shares {
    pub(super) fn start(routers: &[Server], runners: usize) -> Self {
        let (reading, samples) = (JoinSet::new(), Arc::default());
        let mut shares = Self { reading, samples, serving: vec![(Instant::now(), runners)] };
        for router in routers {
            shares.add_router(router);
        }
        shares
    }

    /// Reads this router's counts, too.
    pub(super) fn add_router(&mut self, router: &Server) {
        self.reading.spawn(read_counts(router.admin(), Arc::clone(&self.samples)));
    }

    /// Records the number of runners that can serve from now on.
    pub(super) fn set_serving(&mut self, runners: usize) {
        self.serving.push((Instant::now(), runners));
    }

    /// The largest share of the calls that a runner had in any window. 1.0 is an equal share. Skips
    /// the first window after each change of the number of serving runners.
    pub(super) async fn largest(mut self) -> Option<f64> {
        self.reading.shutdown().await;
        let samples = self.samples.lock().unwrap();
        let end = Instant::now();
        let ends = self.serving.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let phases = self.serving.iter().zip(ends);
        let mut largest: Option<f64> = None;
        for (&(start, runners), end) in phases {
            let mut from = start + WINDOW;
            while from + WINDOW <= end && runners > 0 {
                let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
                for sample in samples.iter().filter(|sample| (from..from + WINDOW).contains(&sample.at)) {
                    for (runner, count) in &sample.calls {
                        *calls.entry(runner).or_default() += count;
                    }
                }
                let (sum, most) = (calls.values().sum::<u64>(), calls.values().max().copied());
                if sum >= MIN_CALLS {
                    let share = most.unwrap_or_default() as f64 / sum as f64 * runners as f64;
                    largest = Some(largest.unwrap_or_default().max(share));
                }
                from += INTERVAL;
            }
        }
        largest
    }
}

/// Collects samples until the router is gone.
async fn read_counts(router: SocketAddr, samples: Arc<Mutex<Vec<Sample>>>) {
    let mut before: Option<BTreeMap<String, u64>> = None;
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Ok(page) = try_get(router, "/shards").await else { return };
        let Ok(page) = serde_json::from_str::<Value>(&page.1) else { return };
        let runners = page["shards"].as_array().into_iter().flatten();
        let now: BTreeMap<_, _> = runners
            .filter_map(|runner| Some((runner["address"].as_str()?.to_owned(), runner["calls"].as_u64()?)))
            .collect();
        if let Some(before) = &before {
            let since = |(runner, count): (&String, &u64)| {
                // If the router removed a runner and added it again, its count starts from zero.
                let before = before.get(runner).copied().filter(|before| before <= count);
                (runner.clone(), count - before.unwrap_or_default())
            };
            let calls = now.iter().map(since).collect();
            samples.lock().unwrap().push(Sample { at: Instant::now(), calls });
        }
        before = Some(now);
    }
}
