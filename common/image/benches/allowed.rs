//! Cost of the longest `--allowed-images` on the request path, for an image that matches no pattern.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use porch_fn_image::AllowedImages;

const PATTERNS: usize = 1000;
const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const IMAGE: &str = "registry.example.com/platform/functions/set-namespace-of-all:v0.4.1";

/// The pattern with a number.
type Pattern = fn(usize) -> String;

fn allowed(c: &mut Criterion) {
    let kinds: [(&str, Pattern); 4] = [
        ("whole images", |n| format!("registry.example.com/platform/functions/set-{n}:v1.*")),
        ("a folder each", |n| format!("registry.example.com/team-{n}/**")),
        ("a name in any folder", |n| format!("registry.example.com/**/set-{n}")),
        ("several wildcards", |n| format!("*.example.com/**/team-{n}-*/*")),
    ];
    let mut group = c.benchmark_group("allowed");
    for (name, pattern) in kinds {
        let patterns: Vec<_> = (0..PATTERNS).map(pattern).collect();
        let allowed = AllowedImages::parse(&patterns, PREFIX).expect("patterns");
        assert!(allowed.check(IMAGE, "").is_err());
        group.bench_function(name, |b| b.iter(|| allowed.check(black_box(IMAGE), "").is_err()));
    }
    group.finish();
}

criterion_group!(benches, allowed);
criterion_main!(benches);
