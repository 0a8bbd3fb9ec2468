//! A runner's limit of bytes in flight. common/grpc tests which images' calls are refused, and
//! runner/src/exec tests how images take turns in the exec runtime.

use bytes::Bytes;
use porch_fn_grpc::{CALL_OVERHEAD, is_shed, load_of};
use porch_fn_proto::PREFIX_LEN;
use porch_fn_tests::caller::{RawCall, RawCaller, framed};
use porch_fn_tests::process::{eventually, wait_metric};
use tonic::Code;

use super::Runner;

/// The script of the images `example.com/gated0:v1`, `gated1:v1`, ...: a call waits until a file
/// `go` exists. Calls of the images `example.com/quick0:v1`, `quick1:v1`, ... do not wait.
const GATED: &str = "touch $TMPDIR/$$.begun; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";

/// Starts a runner that allows `limit` bytes in flight. No test reaches its limit of parallel
/// executions.
async fn limited(limit: usize) -> Runner {
    let images = |name: &str| {
        let images = (0..20).map(|number| format!("example.com/{name}{number}:v1"));
        images.collect::<Vec<_>>().join(",")
    };
    let limit = format!("--max-inflight-bytes={limit}");
    let flags = ["--max-request-body-size=65536", &limit, "--max-parallel-executions=100"];
    Runner::start(&[(&images("gated"), GATED), (&images("quick"), "cat")], &flags).await
}

impl Runner {
    async fn wait(&self, series: &str, value: usize) {
        let series = format!("porch_fn_runner_{series}");
        wait_metric(self.app.admin_address(), &series, value as u64).await;
    }
}

fn package() -> Bytes {
    vec![b'x'; 50_000].into()
}

/// The bytes in flight that the runner counts for one call with [`package`].
fn charge() -> usize {
    framed("example.com/gated0:v1", package()).len() - PREFIX_LEN + CALL_OVERHEAD
}

/// Starts calls of `count` gated images, which hold their bytes until `go` exists.
async fn hold(runner: &Runner, raw: &RawCaller, count: usize) -> Vec<RawCall> {
    let mut held = Vec::new();
    for number in 0..count {
        let mut call = raw.begin(raw.head()).await;
        call.send(framed(&format!("example.com/gated{number}:v1"), package()), true);
        held.push(call);
    }
    runner.wait("inflight_bytes", count * charge()).await;
    runner.sandbox.wait_files(".begun", count).await;
    held
}

#[tokio::test]
async fn calls_without_a_message_are_evicted_for_others() {
    // In the first case, calls send only a prefix, which announces the largest allowed message. In
    // the second case, calls send only headers.
    const LARGEST: u32 = 65_536;
    let announced = [&[0], &LARGEST.to_be_bytes()[..]].concat();
    for (count, prefix, limit) in
        [(2, &announced[..], 2 * (LARGEST as usize + CALL_OVERHEAD)), (11, &[], 10 * CALL_OVERHEAD)]
    {
        let runner = limited(limit).await;
        let raw = RawCaller::connect(runner.app.address()).await;
        let mut silent = Vec::new();
        for _ in 0..count {
            let mut call = raw.begin(raw.head()).await;
            call.send(Bytes::copy_from_slice(prefix), false);
            silent.push(call);
        }
        runner.wait("inflight_bytes", limit).await;
        eventually("a call is accepted", async || {
            let answer = runner.client.call("example.com/quick0:v1", "package").await;
            (answer.code != Code::ResourceExhausted).then(|| assert_eq!(answer.output(), "package"))
        })
        .await;
        // The oldest call is evicted first.
        let evicted = silent.remove(0).answer().await;
        assert_eq!(evicted.code(), Code::ResourceExhausted);
        assert!(evicted.message().starts_with("the message arrived too slowly"), "{}", evicted.message());
        assert!(is_shed(evicted.status_headers()));
    }
}

#[tokio::test]
async fn a_call_over_the_limit_is_shed_before_its_message_has_arrived() {
    let limit = 5 * charge() + 2 * CALL_OVERHEAD;
    let runner = limited(limit).await;
    let raw = RawCaller::connect(runner.app.address()).await;
    let held = hold(&runner, &raw, 5).await;
    let mut sixth = raw.begin(raw.head()).await;
    sixth.send(framed("example.com/quick0:v1", package()).slice(..PREFIX_LEN + 10), false);
    let answer = sixth.answer().await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    let expected = format!(
        "too many bytes in flight: {limit} bytes of messages are the limit of this runner; retry later, or raise \
         --max-inflight-bytes or the number of runners"
    );
    assert_eq!(answer.message(), expected);
    assert!(is_shed(answer.status_headers()));
    assert_eq!(load_of(answer.status_headers()), Some(5));
    runner.wait("inflight_refused_total{reason=\"limit\"}", 1).await;

    let small = runner.client.call("example.com/quick0:v1", "package").await;
    assert_eq!((&small.output()[..], load_of(&small.trailers)), (&b"package"[..], Some(5)));
    runner.sandbox.write("go", "");
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    runner.wait("inflight_bytes", 0).await;
    let last = runner.client.call("example.com/quick0:v1", "package").await;
    assert_eq!(load_of(&last.trailers), Some(0));
}
