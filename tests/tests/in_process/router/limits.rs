//! Limits of message sizes, bytes in flight and compression.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use porch_fn_grpc::{CALL_OVERHEAD, is_shed};
use porch_fn_proto::PREFIX_LEN;
use porch_fn_tests::caller::{framed, request};
use porch_fn_tests::fake_runner::{Answer, Gate, Reply};
use porch_fn_tests::fleet::Fleet;
use prost::Message;
use tokio::time::{Duration, Instant};
use tonic::Code;

const LIMIT: usize = 64 * 1024;
const LIMIT_FLAG: &str = "--max-request-body-size=65536";
const IMAGE: &str = "set-image:v1";

/// A message of exactly `size` bytes, not counting its prefix. Text fills it to this size.
fn message_of(size: usize, message: impl Fn(Bytes) -> Bytes) -> Bytes {
    let mut messages = (0..size).rev().map(|length| message(vec![b'x'; length].into()));
    messages.find(|message| message.len() == PREFIX_LEN + size).expect("a length that fits")
}

fn request_of(size: usize) -> Bytes {
    message_of(size, |text| framed(IMAGE, text))
}

fn answer_of(size: usize) -> Reply {
    let body = message_of(size, |text| Reply::ok(text, "").body);
    Reply { body, ..Reply::ok(Bytes::new(), "") }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// `message` in a frame with the compressed flag.
fn compressed_frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap();
    [&[1][..], &length.to_be_bytes(), message].concat().into()
}

#[tokio::test]
async fn a_request_at_the_limit_is_forwarded_and_one_byte_more_is_refused() {
    let fleet = Fleet::with(1, &[LIMIT_FLAG]).await;
    let raw = fleet.raw().await;
    fleet.runners[0].otherwise(Answer::Reply(Reply::ok(Bytes::new(), "")));
    let fits = request_of(LIMIT);
    assert_eq!(raw.call(&[], fits.clone()).await.code(), Code::Ok);
    assert_eq!(fleet.runners[0].log().calls[0].framed, fits);

    let answer = raw.call(&[], request_of(LIMIT + 1)).await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    assert_eq!(
        answer.message(),
        "grpc: received message larger than max (65537 vs. 65536): raise --max-request-body-size on router and \
         runners, and in Porch the flag that must agree with it: --max-request-body-size (v1.5: \
         --function-runner-grpc-max-message-size)"
    );
    assert_eq!(fleet.taken(), [1]);
}

#[tokio::test]
async fn an_answer_at_the_limit_is_forwarded_and_one_byte_more_is_refused() {
    let (fleet, image, _) = Fleet::ordered(2, &[LIMIT_FLAG]).await;
    let raw = fleet.raw().await;
    let fits = answer_of(LIMIT);
    fleet.runners[0].on(&image, Answer::Reply(fits.clone()));
    let answer = raw.call(&[], framed(&image, "package")).await;
    assert_eq!((answer.code(), answer.body), (Code::Ok, fits.body));

    fleet.runners[0].on(&image, Answer::Reply(answer_of(LIMIT + 1)));
    let answer = raw.call(&[], framed(&image, "package")).await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    let text = answer.message();
    assert!(text.starts_with("grpc: received message larger than max (65537 vs. 65536): "), "{text}");
    assert!(text.contains("--max-request-body-size") && text.contains("Porch"), "{text}");
    assert_eq!(fleet.taken(), [2, 0], "the call is not sent to another runner");
    fleet.wait_all("healthy").await;
}

#[tokio::test]
async fn an_oversized_request_is_refused_before_it_has_arrived() {
    let fleet = Fleet::of(1).await;
    let raw = fleet.raw().await;
    let mut call = raw.begin(raw.head()).await;
    let seven_mebibytes = 7u32 * 1024 * 1024;
    call.send([&[0][..], &seven_mebibytes.to_be_bytes(), b"the beginning"].concat().into(), false);
    let answer = call.answer().await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    assert!(answer.message().contains("(7340032 vs. 6291456)"), "{}", answer.message());
    // The connection still works.
    assert_eq!(raw.call(&[], framed(IMAGE, "package")).await.code(), Code::Ok);

    let caller = fleet.caller().await;
    for _ in 0..3 {
        let status = caller.evaluate(IMAGE, vec![b'x'; 7 * 1024 * 1024]).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains("--max-request-body-size"), "{status:?}");
    }
    assert_eq!(caller.runner_of(IMAGE).await, "0");
}

/// The tests of common/grpc cover which image's calls are refused, and each error text.
#[tokio::test]
async fn over_its_limit_of_bytes_in_flight_the_router_refuses_at_once() {
    // The limit has room for two of the largest messages.
    let limit = format!("--max-inflight-bytes={}", 2 * (LIMIT + CALL_OVERHEAD));
    let fleet = Fleet::with(1, &[LIMIT_FLAG, &limit]).await;
    let (gate, raw) = (Gate::default(), fleet.raw().await);
    fleet.runners[0].otherwise(gate.echo());
    let mut held = Vec::new();
    for image in ["one:v1", "two:v1"] {
        let mut call = raw.begin(raw.head()).await;
        call.send(message_of(LIMIT, |text| framed(image, text)), true);
        held.push(call);
    }
    fleet.runners[0].wait("both calls", |log| log.calls.len() == 2).await;
    let answer = raw.call(&[], framed(IMAGE, "package")).await;
    assert_eq!(answer.code(), Code::ResourceExhausted, "{}", answer.message());
    assert!(
        answer.message().ends_with("--max-inflight-bytes or the number of routers"),
        "{}",
        answer.message()
    );
    assert!(!is_shed(answer.status_headers()));
    assert_eq!(fleet.metric("porch_fn_router_inflight_refused_total{reason=\"limit\"}").await, 1);
    gate.open();
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    fleet.wait_metric("porch_fn_router_inflight_bytes", 0).await;
}

#[tokio::test]
async fn a_compressed_request_is_routed_by_its_image_and_forwarded_unchanged() {
    let fleet = Fleet::of(3).await;
    let raw = fleet.raw().await;
    for index in 0..3 {
        let image = fleet.image(&[index]);
        let sent = compressed_frame(&gzip(&request(&image, "package ".repeat(100)).encode_to_vec()));
        fleet.runners[index].otherwise(Answer::Reply(Reply::ok(Bytes::new(), "")));
        let answer = raw.call(&[("grpc-encoding", "gzip")], sent.clone()).await;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.message());
        let call = fleet.runners[index].log().calls.remove(0);
        assert_eq!(call.framed, sent);
        assert_eq!(call.headers["grpc-encoding"], "gzip");
    }
    assert_eq!(fleet.taken(), [1, 1, 1]);
}

#[tokio::test]
async fn an_unknown_compression_is_refused_with_the_supported_ones() {
    let fleet = Fleet::of(1).await;
    let raw = fleet.raw().await;
    let body = compressed_frame(b"whatever");
    let answer = raw.call(&[("grpc-encoding", "snappy")], body.clone()).await;
    assert_eq!(answer.code(), Code::Unimplemented);
    assert!(answer.message().contains("it accepts gzip and identity"), "{}", answer.message());
    assert_eq!(answer.headers["grpc-accept-encoding"], "identity,gzip");
    for fields in [&[("grpc-encoding", "identity")][..], &[]] {
        let answer = raw.call(fields, body.clone()).await;
        assert_eq!(answer.code(), Code::Internal);
        assert_eq!(answer.message(), "grpc: compressed flag set with identity or empty encoding");
    }
    let answer = raw.call(&[("grpc-encoding", "gzip")], body).await;
    assert_eq!(answer.code(), Code::Internal);
    assert!(answer.message().starts_with("the message is not valid gzip"), "{}", answer.message());
    // The encoding in the header has no effect on a message that is not compressed.
    let answer = raw.call(&[("grpc-encoding", "snappy")], framed(IMAGE, "package")).await;
    assert_eq!(answer.code(), Code::Ok);
    assert_eq!(fleet.taken(), [1]);
}

#[tokio::test]
async fn a_message_that_exceeds_the_limit_when_inflated_is_refused() {
    const DEFAULT_LIMIT: usize = 6 * 1024 * 1024;
    let fleet = Fleet::of(1).await;
    // A gzip file may have many members in sequence. Inflated, they have more than a gigabyte.
    let member = gzip(&vec![0; 1024 * 1024]);
    let bomb = compressed_frame(&member.repeat(DEFAULT_LIMIT / member.len()));
    let started = Instant::now();
    let answer = fleet.raw().await.call(&[("grpc-encoding", "gzip")], bomb).await;
    assert_eq!(answer.code(), Code::ResourceExhausted, "{}", answer.message());
    let text = answer.message();
    assert!(
        text.starts_with("grpc: received message larger than max (more after decompression vs. 6291456): "),
        "{text}"
    );
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(fleet.taken(), [0]);
}
