//! The router's cost of a request's image: at most 100 ns for any size of the package.

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use porch_fn_proto::{Chunks, encode_request, peek};

const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1";
/// grpc-go sends at most this much in one DATA frame.
const GO_FRAME: usize = 16 * 1024;

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("peek");
    for size in [2 * 1024, 1024 * 1024, 5 * 1024 * 1024] {
        let whole = encode_request(Bytes::from(vec![b'x'; size]).into(), IMAGE, "").contiguous();
        let one: Chunks = whole.clone().into();
        let frames: Chunks = (0..whole.len())
            .step_by(GO_FRAME)
            .map(|at| whole.slice(at..whole.len().min(at + GO_FRAME)))
            .collect();
        group.bench_function(BenchmarkId::new("contiguous", size), |b| b.iter(|| peek(&one)));
        group.bench_function(BenchmarkId::new("data frames", size), |b| b.iter(|| peek(&frames)));
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
