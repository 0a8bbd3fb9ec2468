//! Checks outputs of functions: the outline, which a function that succeeds pays for, and the parser.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wrapper_server::resource_list::{check, check_outline};

const ITEM: &str = "- apiVersion: apps/v1\n  kind: Deployment\n  metadata:\n    name: web\n    annotations:\n      \
                    internal.config.kubernetes.io/index: '0'\n  spec:\n    replicas: 3\n    template:\n      spec:\n        \
                    containers:\n        - name: nginx\n          image: nginx:1.27\n";

fn outputs(criterion: &mut Criterion) {
    for (name, size) in [("2 KiB", 2 << 10), ("1 MiB", 1 << 20)] {
        let output = format!("kind: ResourceList\nitems:\n{}", ITEM.repeat(size / ITEM.len()));
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(output.len() as u64));
        group.bench_function("outline", |bench| bench.iter(|| check_outline(black_box(output.as_bytes()))));
        group.bench_function("parser", |bench| bench.iter(|| check(black_box(output.as_bytes()))));
        group.finish();
    }
}

criterion_group!(benches, outputs);
criterion_main!(benches);
