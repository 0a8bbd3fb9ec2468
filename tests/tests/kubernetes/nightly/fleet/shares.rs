//! How the calls of a load are distributed over the runners in each second, as counted by the
//! routers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use porch_fn_tests::process::{Server, try_get};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often each router is asked for its counts.
const EVERY: Duration = Duration::from_millis(250);
/// The period over which a share is computed, and for which it may be too large.
const WINDOW: Duration = Duration::from_secs(2);
/// A window with fewer calls is ignored.
const FEWEST: u64 = 200;

/// Reads the routers' counts until it is dropped.
pub(super) struct Shares {
    asking: JoinSet<()>,
    samples: Arc<Mutex<Vec<Sample>>>,
    /// How many runners could serve, and since when.
    serving: Vec<(Instant, usize)>,
}

/// The calls that one router sent to each runner since the previous sample.
struct Sample {
    at: Instant,
    calls: BTreeMap<String, u64>,
}

impl Shares {
    pub(super) fn start(routers: &[Server], runners: usize) -> Self {
        let (asking, samples) = (JoinSet::new(), Arc::default());
        let mut shares = Self { asking, samples, serving: vec![(Instant::now(), runners)] };
        for router in routers {
            shares.also(Some(router));
        }
        shares
    }

    /// Reads this router's counts, too.
    pub(super) fn also(&mut self, router: Option<&Server>) {
        if let Some(router) = router {
            self.asking.spawn(ask(router.admin(), Arc::clone(&self.samples)));
        }
    }

    /// Records how many runners can serve from now on.
    pub(super) fn serving(&mut self, runners: usize) {
        self.serving.push((Instant::now(), runners));
    }

    /// The largest share that a runner had in any two seconds, in fair shares. The two seconds
    /// after each change of the number of serving runners do not count.
    pub(super) async fn largest(mut self) -> Option<f64> {
        self.asking.shutdown().await;
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
                if sum >= FEWEST {
                    let share = most.unwrap_or_default() as f64 / sum as f64 * runners as f64;
                    largest = Some(largest.unwrap_or_default().max(share));
                }
                from += EVERY;
            }
        }
        largest
    }
}

/// Collects samples until the router is gone.
async fn ask(router: SocketAddr, samples: Arc<Mutex<Vec<Sample>>>) {
    let mut before: Option<BTreeMap<String, u64>> = None;
    let mut ticks = interval(EVERY);
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
                // If the router forgot a runner, its count starts again from zero.
                let before = before.get(runner).copied().filter(|before| before <= count);
                (runner.clone(), count - before.unwrap_or_default())
            };
            let calls = now.iter().map(since).collect();
            samples.lock().unwrap().push(Sample { at: Instant::now(), calls });
        }
        before = Some(now);
    }
}
