//! Bytes in flight: who is refused when the router holds all that it may. Which images have to yield is tested in
//! common/grpc.

use bytes::Bytes;
use porch_fn_grpc::{CALL_OVERHEAD, is_shed};
use porch_fn_proto::PREFIX_LEN;
use porch_fn_tests::caller::{RawCall, RawCaller, framed};
use porch_fn_tests::fake_runner::Gate;
use porch_fn_tests::fleet::Fleet;
use tonic::Code;

const FLOOD: &str = "example.com/flood:v1";
const HELD: &str = "porch_fn_router_inflight_bytes";

/// A call of `image` with a package of 50,000 bytes.
fn large(image: &str) -> Bytes {
    framed(image, vec![b'x'; 50_000])
}

/// What a call of an image with a name as long as [`FLOOD`] is charged.
fn charge() -> usize {
    large(FLOOD).len() - PREFIX_LEN + CALL_OVERHEAD
}

async fn fleet(limit: usize) -> Fleet {
    Fleet::with(1, &["--max-request-body-size=65536", &format!("--max-inflight-bytes={limit}")]).await
}

async fn begin(raw: &RawCaller, message: Bytes) -> RawCall {
    let mut call = raw.begin(raw.head()).await;
    call.send(message, true);
    call
}

#[tokio::test]
async fn a_call_too_many_is_refused_before_its_message_is_in() {
    let limit = 5 * charge() + 2 * CALL_OVERHEAD;
    let fleet = fleet(limit).await;
    let (runner, gate) = (&fleet.runners[0], Gate::new());
    let raw = fleet.raw().await;
    let mut held = Vec::new();
    for number in 0..5 {
        // As long as the other name.
        let image = format!("example.com/floo{number}:v1");
        runner.on(&image, gate.echo());
        held.push(begin(&raw, large(&image)).await);
    }
    runner.wait("five calls", |log| log.calls.len() == 5).await;
    fleet.wait_metric(HELD, 5 * charge() as u64).await;

    let mut sixth = raw.begin(raw.head()).await;
    sixth.send(large(FLOOD).slice(..PREFIX_LEN + 10), false);
    let answer = sixth.answer().await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    let expected = format!(
        "too many bytes in flight: {limit} bytes of messages are the limit of this router; retry later, or raise \
         --max-inflight-bytes or the number of routers"
    );
    assert_eq!(answer.message(), expected);
    assert!(!is_shed(answer.status_headers()));
    assert_eq!(fleet.taken(), [5]);
    assert_eq!(fleet.metric("porch_fn_router_inflight_refused_total{reason=\"limit\"}").await, 1);
    assert_eq!(fleet.metric("porch_fn_router_inflight_limit_bytes").await, limit as u64);

    // The connection has taken no harm, and what fits goes through.
    assert_eq!(raw.call(&[], framed("small:v1", "package")).await.code(), Code::Ok);
    gate.open();
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    fleet.wait_metric(HELD, 0).await;
}
