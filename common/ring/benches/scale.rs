//! A cluster far larger than any we know of: 1,000 runners and 100,000 images. Prints figures, and fails where a bound
//! of the project is not kept: a rebuild within 50 ms, and 1.1 times the ideal number of images that move. What a whole
//! router needs at that size is measured on a real one, by tests/simulation.

use std::time::{Duration, Instant};

use porch_fn_ring::{Identity, Ring};

const RUNNERS: usize = 1_000;
const IMAGES: usize = 100_000;
const REBUILDS: usize = 21;
/// Runners that join, and leave again, one after the other.
const JOINS: usize = 10;
const LONGEST_REBUILD: Duration = Duration::from_millis(50);
const MOST_MOVED: f64 = 1.1;

fn runner(n: usize) -> Identity {
    format!("10.{}.{}.{}:9445", n >> 16, n >> 8 & 255, n & 255).into()
}

fn ring(count: usize) -> Ring {
    Ring::new((0..count).map(runner)).expect("few runners")
}

/// What one rebuild of the ring takes, in the middle and at worst.
fn rebuilds() -> (Duration, Duration) {
    let mut taken: Vec<_> = (0..REBUILDS)
        .map(|_| {
            let runners: Vec<_> = (0..RUNNERS).map(runner).collect();
            let began = Instant::now();
            let ring = Ring::new(runners).expect("few runners");
            let took = began.elapsed();
            assert_eq!(ring.nodes().len(), RUNNERS);
            took
        })
        .collect();
    taken.sort_unstable();
    (taken[REBUILDS / 2], taken[REBUILDS - 1])
}

/// How many images move when a runner joins, as multiples of their number over that of the runners.
fn moved(images: &[String]) -> Vec<f64> {
    let mut before = ring(RUNNERS);
    (RUNNERS..RUNNERS + JOINS)
        .map(|count| {
            let after = ring(count + 1);
            let newcomer = runner(count);
            let moved = images.iter().filter(|image| {
                let moves = before.owner(image) != after.owner(image);
                assert!(!moves || after.owner(image) == Some(&newcomer), "{image} moved between survivors");
                moves
            });
            let moved = moved.count() as f64 * (count + 1) as f64 / IMAGES as f64;
            before = after;
            moved
        })
        .collect()
}

fn main() {
    let images: Vec<_> =
        (0..IMAGES).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v0.4.1")).collect();

    let (median, worst) = rebuilds();
    println!("figure: rebuild of the ring of {RUNNERS} runners: median {median:.1?}, worst {worst:.1?}");

    let ring = ring(RUNNERS);
    let began = Instant::now();
    let found = images.iter().filter(|image| ring.owner(image).is_some()).count();
    let each = began.elapsed() / IMAGES as u32;
    println!("figure: owners of {found} images found in {each:.0?} each");

    let moved = moved(&images);
    let mean = moved.iter().sum::<f64>() / moved.len() as f64;
    let worst_move = moved.iter().copied().fold(0.0, f64::max);
    println!("figure: images moved by a join, as multiples of the ideal: mean {mean:.3}, worst {worst_move:.3}");

    assert!(median <= LONGEST_REBUILD, "a rebuild takes {median:?}");
    assert!(mean <= MOST_MOVED, "{mean} times the ideal number of images move");
}
