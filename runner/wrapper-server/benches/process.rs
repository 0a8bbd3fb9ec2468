//! Cost of a call's process, and what it costs on top to leave nothing behind.

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use wrapper_server::process::{Environment, Limits, Program, adopt_orphans, run};

const LIMITS: Limits = Limits { stdout: 1024, stderr_head: 1024, stderr_tail: 1024, join_lines: false };

fn process(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let program = Program::new("true", [""; 0], Environment::Inherit);
    let call = || {
        let program = program.clone();
        // By a worker, as in the wrapper: orphans are told from calls by their thread.
        let call = runtime.spawn(async move { run(&program, Vec::new(), &LIMITS, None).await });
        runtime.block_on(call).expect("it runs").expect("it succeeds")
    };
    let mut group = c.benchmark_group("process");
    group.sample_size(200);
    group.bench_function("its group is killed", |b| b.iter(call));
    adopt_orphans();
    group.bench_function("orphans are looked for", |b| b.iter(call));
    group.finish();
}

criterion_group!(benches, process);
criterion_main!(benches);
