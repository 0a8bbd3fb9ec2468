//! Reading the image of a message without decoding its package, which each hop does once per call.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use porch_fn_proto::{Chunks, encode_request, peek};

const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-labels:v0.4.1";

fn peeks(criterion: &mut Criterion) {
    for (name, size) in [("2 KiB", 2 << 10), ("1 MiB", 1 << 20)] {
        let mut package = Chunks::default();
        // A message arrives in frames of 16 KiB.
        for _ in 0..(size >> 14).max(1) {
            package.push(Bytes::from(vec![b'a'; size.min(1 << 14)]));
        }
        let message = encode_request(package, IMAGE, "");
        criterion.bench_function(&format!("peek, {name}"), |bench| bench.iter(|| peek(black_box(&message))));
    }
}

criterion_group!(benches, peeks);
criterion_main!(benches);
