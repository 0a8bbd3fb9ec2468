//! The ring of a cluster far larger than any we know of: 1,000 runners and 100,000 images. Prints figures, and fails if
//! a rebuild takes longer than 50 ms or a join moves more than 1.1 times the ideal number of images. tests/simulation
//! measures a whole router at that size.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

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

    let mut rebuilds: Vec<_> = (0..REBUILDS)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(ring(RUNNERS).nodes().len(), RUNNERS);
            began.elapsed()
        })
        .collect();
    rebuilds.sort_unstable();
    let (median, worst) = (rebuilds[REBUILDS / 2], rebuilds[REBUILDS - 1]);
    println!("figure: rebuild of the ring of {RUNNERS} runners: median {median:.1?}, worst {worst:.1?}");

    let ring = ring(RUNNERS);
    let began = Instant::now();
    let found = images.iter().filter(|image| ring.owner(image).is_some()).count();
    let each = began.elapsed() / IMAGES as u32;
    println!("figure: owners of {found} images found in {each:.0?} each");

    let moved = moved(&images);
    let mean = moved.iter().sum::<f64>() / moved.len() as f64;
    let worst_move = moved.iter().copied().fold(0.0, f64::max);
    println!(
        "figure: images moved by a join, as multiples of the ideal: mean {mean:.3}, worst {worst_move:.3}"
    );

    assert!(median <= LONGEST_REBUILD, "a rebuild takes {median:?}");
    assert!(mean <= MOST_MOVED, "{mean} times the ideal number of images move");
}
