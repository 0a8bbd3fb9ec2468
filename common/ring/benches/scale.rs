//! The ring of an unusually large cluster: 1,000 runners and 100,000 images. Prints figures, and
//! fails if a rebuild takes longer than 50 ms. tests/simulation measures a whole router at that
//! size.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use porch_fn_ring::Ring;

fn ring() -> Ring {
    Ring::new((0..1000).map(|n| format!("10.0.{}.{}:9445", n >> 8, n & 255)))
}

fn main() {
    let mut rebuilds = [0; 21].map(|_| {
        let began = Instant::now();
        assert_eq!(ring().nodes().len(), 1000);
        began.elapsed()
    });
    rebuilds.sort_unstable();
    println!(
        "figure: rebuild of the ring of 1,000 runners: median {:.1?}, worst {:.1?}",
        rebuilds[10], rebuilds[20]
    );

    let images = (0..100_000).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v0.4.1"));
    let (images, ring) = (images.collect::<Vec<_>>(), ring());
    let began = Instant::now();
    assert!(images.iter().all(|image| ring.owner(image).is_some()));
    println!("figure: owners of 100,000 images found in {:.0?} each", began.elapsed() / 100_000);
    assert!(rebuilds[10] <= Duration::from_millis(50));
}
