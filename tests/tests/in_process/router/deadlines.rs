//! Deadlines: when a call ends, which status the caller gets, and that the router cancels its call
//! to the runner. The tests use raw HTTP/2, because a client with its own deadline timer would hide
//! the server's answer.

use porch_fn_grpc::parse_timeout;
use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::Gate;
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant, sleep};
use tonic::Code;

const IMAGE: &str = "set-image:v1";

/// A fleet of one runner that never answers.
async fn held(flags: &[&str]) -> Fleet {
    let fleet = Fleet::with(1, flags).await;
    fleet.runners[0].otherwise(Gate::default().echo());
    fleet
}

/// Without a deadline, a call ends at `--request-timeout`, which the error names.
#[tokio::test]
async fn an_expired_deadline_ends_the_call_and_cancels_it_at_the_runner() {
    let limit = Duration::from_millis(200);
    let of_flag = "no answer within --request-timeout, which bounds calls without a deadline";
    for (flag, fields, text) in [
        ("--request-timeout=1h", &[("grpc-timeout", "200m")][..], "context deadline exceeded"),
        ("--request-timeout=200ms", &[], of_flag),
    ] {
        let fleet = held(&[flag]).await;
        let raw = fleet.raw().await;
        let started = Instant::now();
        let answer = raw.call(fields, framed(IMAGE, "package")).await;
        assert_eq!((answer.code(), answer.message().as_str()), (Code::DeadlineExceeded, text));
        assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
        let log = fleet.runners[0].wait("the cancellation", |log| log.abandoned == 1).await;
        let sent = parse_timeout(&log.calls[0].headers).unwrap();
        assert!(sent.is_some_and(|sent| sent <= limit), "{sent:?}");
        fleet.wait_calls(0).await;
        fleet.wait_metric("porch_fn_router_calls_total{code=\"DEADLINE_EXCEEDED\"}", 1).await;
        fleet.wait_all("healthy").await;
    }
}

#[tokio::test]
async fn the_deadline_ends_a_call_whose_request_does_not_arrive() {
    let fleet = Fleet::of(1).await;
    let raw = fleet.raw().await;
    let mut head = raw.head();
    head.headers_mut().insert("grpc-timeout", "200m".parse().unwrap());
    let mut call = raw.begin(head).await;
    let body = framed(IMAGE, "package");
    call.send(body.slice(..body.len() / 2), false);
    let answer = call.answer().await;
    assert_eq!(answer.code(), Code::DeadlineExceeded);
    assert_eq!(fleet.taken(), [0]);
}

#[tokio::test]
async fn request_timeout_does_not_shorten_a_deadline_that_the_caller_set() {
    let fleet = Fleet::with(1, &["--request-timeout=50ms"]).await;
    let gate = Gate::default();
    fleet.runners[0].otherwise(gate.echo());
    let raw = fleet.raw().await;
    let call = raw.call(&[("grpc-timeout", "99999999H")], framed(IMAGE, "package"));
    let opened = async {
        sleep(Duration::from_millis(200)).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(call, opened);
    assert_eq!(answer.code(), Code::Ok, "{}", answer.message());
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_runner() {
    let fleet = held(&[]).await;
    let raw = fleet.raw().await;
    let mut call = raw.begin(raw.head()).await;
    call.send(framed(IMAGE, "package"), true);
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    call.cancel();
    fleet.runners[0].wait("the cancellation", |log| log.abandoned == 1).await;
    fleet.wait_calls(0).await;

    // The caller closes its connection.
    let calling = fleet.caller().await.spawn(IMAGE);
    fleet.runners[0].wait("the call", |log| log.calls.len() == 2).await;
    calling.abort();
    fleet.runners[0].wait("the cancellation", |log| log.abandoned == 2).await;
    fleet.wait_calls(0).await;
    fleet.wait_metric("porch_fn_router_calls_total{code=\"CANCELLED\"}", 2).await;
    fleet.wait_all("healthy").await;
}

#[tokio::test]
async fn a_malformed_deadline_is_refused_as_by_grpc_go() {
    let fleet = Fleet::of(1).await;
    for malformed in ["soon", "", "123456789S", "-1S"] {
        let answer = fleet.raw().await.call(&[("grpc-timeout", malformed)], framed(IMAGE, "package")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, Code::Internal), "{malformed:?}");
        assert!(answer.message().starts_with("malformed grpc-timeout"), "{}", answer.message());
    }
    assert_eq!(fleet.taken(), [0]);
}
