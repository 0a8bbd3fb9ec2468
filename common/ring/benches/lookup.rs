//! The lookup of an image's preference order, which each call through a router pays for.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use porch_fn_ring::Ring;

fn lookups(criterion: &mut Criterion) {
    let images: Vec<_> =
        (0..10_000).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v0.4.1")).collect();
    for runners in [3, 100, 1_000] {
        let ring = Ring::new((0..runners).map(|n| format!("10.0.{}.{}:9445", n >> 8, n & 255)));
        let mut next = images.iter().cycle();
        criterion.bench_function(&format!("preference order, {runners} runners"), |bench| {
            bench
                .iter(|| black_box(ring.preference(next.next().map_or("", String::as_str))).first().copied());
        });
    }
}

criterion_group!(benches, lookups);
criterion_main!(benches);
