//! Simulates the width rule of `spill.rs` under skewed traffic. The assertions check averages.
//!
//! Poisson arrivals, exponential service times, Zipf image popularity, runners that never reject.
//! The results are the busiest runner's requests divided by the mean, and the number of (image,
//! runner) pairs with traffic. Each pair is a pool of warm pods. Seeds are fixed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use porch_fn_ring::Ring;
use porch_fn_ring::spill::{Demand, Limits, choose};

const RUNNERS: usize = 5;
const IMAGES: usize = 100;
/// Mean requests in flight per runner.
const CONCURRENCY: f64 = 16.0;
/// Mean service time. The time constant of the demand is 20 times as long.
const SERVICE_SECONDS: f64 = 0.25;
/// Requests per seed. With 600,000, the result is the same peak and three more pairs.
const REQUESTS: usize = 20_000;
/// The number of seeds. It is high, because the peak of one seed depends on the positions of the
/// hot images on the ring.
const SEEDS: u64 = 50;

/// The random number generator `SplitMix64`. The numbers depend only on the seed.
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

/// One router, its images and its traffic.
struct Simulation {
    random: Random,
    ring: Ring,
    /// Key and demand of each image, from the most to the least popular.
    images: Vec<(String, Demand)>,
    /// Cumulative popularity.
    popularity: Vec<f64>,
    now: Duration,
    loads: Vec<usize>,
    completions: BinaryHeap<Reverse<(Duration, usize, usize)>>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let runners = (0..RUNNERS).map(|n| format!("10.0.{seed}.{n}:9445"));
        let image = |n| (format!("registry.example/function-{n}:v{seed}"), Demand::default());
        let popularity = (1..=IMAGES).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self {
            random: Random(seed),
            ring: Ring::new(runners),
            images: (0..IMAGES).map(image).collect(),
            popularity: popularity.collect(),
            now: Duration::ZERO,
            loads: vec![0; RUNNERS],
            completions: BinaryHeap::new(),
        }
    }

    /// Advances the time to the next request, and returns its image.
    fn arrival(&mut self) -> usize {
        let mean_gap = SERVICE_SECONDS / (CONCURRENCY * RUNNERS as f64);
        self.now += self.random.exponential(mean_gap);
        let point = self.random.uniform() * self.popularity[IMAGES - 1];
        self.popularity.partition_point(|&sum| sum < point)
    }

    /// Starts a request of `image` and returns its runner.
    fn start(&mut self, image: usize) -> usize {
        while let Some(&Reverse((end, image, runner))) = self.completions.peek()
            && end <= self.now
        {
            self.completions.pop();
            self.images[image].1.end(end);
            self.loads[runner] -= 1;
        }
        let end = self.now + self.random.exponential(SERVICE_SECONDS);
        let (key, demand) = &mut self.images[image];
        let in_flight = self.loads.iter().sum();
        let demand = demand.start(self.now);
        let limits = Limits::new(in_flight, RUNNERS, demand, 1);
        let load = |runner: u16| self.loads[usize::from(runner)];
        let runner = choose(self.ring.preference(key), RUNNERS, limits, load, |_| true).unwrap().into();
        self.loads[runner] += 1;
        self.completions.push(Reverse((end, image, runner)));
        runner
    }
}

/// The busiest runner's requests divided by the mean.
fn peak(served: [usize; RUNNERS]) -> f64 {
    *served.iter().max().unwrap() as f64 * RUNNERS as f64 / served.iter().sum::<usize>() as f64
}

/// Without the rule, the same traffic has a peak above 1.5 and 100 pairs, one for each image.
#[test]
fn the_width_rule_levels_load_without_spreading_cold_images() {
    let (mut peaks, mut all_pairs) = (0.0, 0);
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(seed);
        let (mut served, mut pairs) = ([0; RUNNERS], HashSet::new());
        for _ in 0..REQUESTS {
            let image = simulation.arrival();
            let runner = simulation.start(image);
            served[runner] += 1;
            pairs.insert((image, runner));
        }
        peaks += peak(served);
        all_pairs += pairs.len();
    }
    let (peak, pairs) = (peaks / SEEDS as f64, all_pairs as f64 / SEEDS as f64);
    println!("width rule: peak/mean {peak:.3}, pairs {pairs:.1}");
    assert!(peak <= 1.35, "peak/mean {peak}");
    assert!(pairs <= 115.0, "pairs {pairs}");
}

/// A cold image jumps to 30 % of all traffic. The burst must raise the demand at once, and spread
/// the image before its mean demand has risen.
#[test]
fn a_cold_image_that_turns_hot_does_not_overload_its_owner() {
    let of_seed = |seed| {
        let mut simulation = Simulation::new(seed);
        let warm_up = Duration::from_secs(20);
        let (from, to) = (warm_up + Duration::from_millis(500), warm_up + Duration::from_millis(1250));
        let mut served = [0; RUNNERS];
        while simulation.now < to {
            let popular = simulation.arrival();
            let jumps = simulation.now >= warm_up && simulation.random.uniform() < 0.3;
            let runner = simulation.start(if jumps { IMAGES - 1 } else { popular });
            served[runner] += usize::from(simulation.now >= from);
        }
        peak(served)
    };
    let peak = (0..SEEDS).map(of_seed).sum::<f64>() / SEEDS as f64;
    println!("service times 2 to 5 after the jump: peak/mean {peak:.3}");
    assert!(peak <= 1.7, "peak/mean {peak}");
}
