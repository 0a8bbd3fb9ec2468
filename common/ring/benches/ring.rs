//! Cost of the ring on the request path (a lookup) and off it (a rebuild on a membership change).

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use porch_fn_ring::spill::{Spill, choices};
use porch_fn_ring::{Identity, Ring};

fn runners(count: usize) -> Vec<Identity> {
    (0..count).map(|n| format!("10.{}.{}.{}:9445", n >> 16, n >> 8 & 255, n & 255).into()).collect()
}

/// As many keys as a busy router knows images, so that the search does not always walk the same cache lines.
fn keys() -> Vec<String> {
    (0..1000).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v0.4.1")).collect()
}

fn lookup(c: &mut Criterion) {
    let keys = keys();
    let mut group = c.benchmark_group("lookup");
    for count in [50, 1000] {
        let ring = Ring::new(runners(count)).expect("few runners");
        let mut next = keys.iter().cycle();
        group.bench_function(format!("{count} runners"), |b| {
            b.iter(|| ring.preference(black_box(next.next().expect("a cycle has no end"))));
        });
    }
    group.finish();
}

fn pick(c: &mut Criterion) {
    let ring = Ring::new(runners(50)).expect("few runners");
    let preference = ring.preference("ghcr.io/kptdev/krm-functions-catalog/set-image:v0.1.5");
    c.bench_function("pick/50 runners, owner full", |b| {
        b.iter(|| {
            let limits = Spill::default().limits(black_box(100), 50, 12.0);
            choices(preference, 50, limits, |node| if node == preference[0] { 99 } else { 1 }, |_| true)
                .next()
        });
    });
}

fn rebuild(c: &mut Criterion) {
    let mut group = c.benchmark_group("rebuild");
    group.sample_size(20);
    for count in [50, 1000] {
        let runners = runners(count);
        group.bench_function(format!("{count} runners"), |b| {
            b.iter_batched(|| runners.clone(), Ring::new, BatchSize::LargeInput);
        });
    }
    group.finish();
}

criterion_group!(benches, lookup, pick, rebuild);
criterion_main!(benches);
