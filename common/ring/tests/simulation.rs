//! The width rule against skewed traffic: what it promises is statistical, so it is simulated.
//!
//! Poisson arrivals, exponential service times, Zipf image popularity, runners that never refuse. Counted are
//! the requests of the busiest runner over the mean, and the (image, runner) pairs that saw traffic, each of
//! which is a pool of warm pods. Seeds are fixed, so the figures are the same on every run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use porch_fn_ring::spill::{Demand, Spill, choices};
use porch_fn_ring::{Identity, Ring};

const RUNNERS: usize = 5;
const IMAGES: usize = 100;
/// Mean requests in flight per runner.
const CONCURRENCY: f64 = 16.0;
/// 20 of them are the demand's time constant.
const SERVICE_SECONDS: f64 = 0.25;
/// Per seed. 600,000 give three pairs more and the same peak.
const REQUESTS: usize = 20_000;
/// Where the hot images happen to lie on the ring decides one seed's peak, so it takes many.
const SEEDS: u64 = 50;

/// `SplitMix64`: small, and the same for ever.
struct Random(u64);

impl Random {
    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-self.uniform().ln() * mean)
    }
}

#[derive(Default)]
struct Image {
    key: String,
    demand: Demand,
}

/// Requests in flight, as the router would count them.
struct Router {
    ring: Ring,
    spill: Spill,
    images: Vec<Image>,
    loads: Vec<usize>,
    total: usize,
    completions: BinaryHeap<Reverse<(Duration, usize, usize)>>,
}

impl Router {
    fn new(seed: u64, spill: Spill) -> Self {
        let runners = (0..RUNNERS).map(|n| Identity::from(format!("10.0.{seed}.{n}:9445")));
        let image = |n| Image { key: format!("registry.example/function-{n}:v{seed}"), ..Image::default() };
        Self {
            ring: Ring::new(runners).unwrap(),
            spill,
            images: (0..IMAGES).map(image).collect(),
            loads: vec![0; RUNNERS],
            total: 0,
            completions: BinaryHeap::new(),
        }
    }

    fn complete_until(&mut self, now: Duration) {
        while let Some(&Reverse((end, image, runner))) = self.completions.peek()
            && end <= now
        {
            self.completions.pop();
            self.images[image].demand.sub(end);
            self.loads[runner] -= 1;
            self.total -= 1;
        }
    }

    fn start(&mut self, now: Duration, image: usize, end: Duration) -> usize {
        let Image { key, demand } = &mut self.images[image];
        let limits = self.spill.limits(self.total, RUNNERS, demand.estimate(now));
        let preference = self.ring.preference(key);
        let load = |runner: u16| self.loads[usize::from(runner)];
        let runner = choices(preference, RUNNERS, limits, load, |_| true).next().unwrap().into();
        demand.add(now);
        self.loads[runner] += 1;
        self.total += 1;
        self.completions.push(Reverse((end, image, runner)));
        runner
    }
}

struct Traffic {
    random: Random,
    /// Cumulated popularity.
    popularity: Vec<f64>,
    now: Duration,
}

impl Traffic {
    fn zipf(seed: u64) -> Self {
        let weights = (1..=IMAGES).map(|rank| 1.0 / rank as f64);
        let popularity = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { random: Random(seed), popularity: popularity.collect(), now: Duration::ZERO }
    }

    /// The next request: when it comes, for which image, when it ends.
    fn next(&mut self) -> (Duration, usize, Duration) {
        let mean_gap = SERVICE_SECONDS / (CONCURRENCY * RUNNERS as f64);
        self.now += self.random.exponential(mean_gap);
        let point = self.random.uniform() * self.popularity[IMAGES - 1];
        let image = self.popularity.partition_point(|&sum| sum < point);
        (self.now, image, self.now + self.random.exponential(SERVICE_SECONDS))
    }
}

/// (peak/mean, pairs) of one seed.
fn simulate(seed: u64, spill: Spill) -> (f64, f64) {
    let mut router = Router::new(seed, spill);
    let mut traffic = Traffic::zipf(seed);
    let mut served = [0_usize; RUNNERS];
    let mut pairs = HashSet::new();
    for _ in 0..REQUESTS {
        let (now, image, end) = traffic.next();
        router.complete_until(now);
        let runner = router.start(now, image, end);
        served[runner] += 1;
        pairs.insert((image, runner));
    }
    let peak = served.into_iter().max().unwrap() as f64 * RUNNERS as f64 / REQUESTS as f64;
    (peak, pairs.len() as f64)
}

fn mean_over(seeds: u64, spill: Spill) -> (f64, f64) {
    let runs: Vec<_> = (0..seeds).map(|seed| simulate(seed, spill)).collect();
    let mean = |value: fn(&(f64, f64)) -> f64| runs.iter().map(value).sum::<f64>() / seeds as f64;
    (mean(|run| run.0), mean(|run| run.1))
}

#[test]
fn the_width_rule_levels_load_without_spreading_cold_images() {
    let (peak, pairs) = mean_over(SEEDS, Spill::default());
    println!("width rule: peak/mean {peak:.3}, pairs {pairs:.1}");
    assert!(peak <= 1.35, "peak/mean {peak}");
    assert!(pairs <= 115.0, "pairs {pairs}");
}

/// The control: the same traffic with a cap that is never reached, hence no spill.
#[test]
fn without_the_rule_the_same_traffic_is_lopsided() {
    let (peak, pairs) = mean_over(10, Spill { floor: usize::MAX, ..Spill::default() });
    println!("no spill: peak/mean {peak:.3}, pairs {pairs:.1}");
    assert!(peak >= 1.5, "peak/mean {peak}");
    assert!((pairs - IMAGES as f64).abs() < 0.5, "pairs {pairs}");
}

/// A cold image jumps to 30 % of all traffic. The burst term has to spread it before the mean knows.
#[test]
fn a_cold_image_that_turns_hot_does_not_bury_its_owner() {
    let mut peaks = 0.0;
    for seed in 0..SEEDS {
        let mut router = Router::new(seed, Spill::default());
        let mut traffic = Traffic::zipf(seed);
        let warm_up = Duration::from_secs(20);
        let (from, to) = (warm_up + Duration::from_millis(500), warm_up + Duration::from_millis(1250));
        let mut served = [0_usize; RUNNERS];
        while traffic.now < to {
            let (now, image, end) = traffic.next();
            let jump = now >= warm_up && traffic.random.uniform() < 0.3;
            let image = if jump { IMAGES - 1 } else { image };
            router.complete_until(now);
            let runner = router.start(now, image, end);
            served[runner] += usize::from(now >= from);
        }
        let total: usize = served.iter().sum();
        peaks += *served.iter().max().unwrap() as f64 * RUNNERS as f64 / total as f64;
    }
    let peak = peaks / SEEDS as f64;
    println!("service times 2 to 5 after the jump: peak/mean {peak:.3}");
    assert!(peak <= 1.7, "peak/mean {peak}");
}
