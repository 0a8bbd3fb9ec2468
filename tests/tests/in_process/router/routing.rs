//! Which runner gets a call, and that the router does not change calls and answers.

use std::collections::BTreeSet;

use bytes::Bytes;
use porch_fn_grpc::parse_timeout;
use porch_fn_image::shard_key;
use porch_fn_proto::evaluator::EvaluateFunctionResponse;
use porch_fn_proto::{Chunks, frame};
use porch_fn_tests::caller::{framed, request};
use porch_fn_tests::fake_runner::{Answer, FakeRunner, Gate, How, Point, Reply, headers, soon};
use porch_fn_tests::fleet::{Fleet, PREFIX};
use prost::Message;
use tokio::time::{Duration, sleep};
use tonic::Code;

/// Unknown fields: 15 (bytes), 16 (varint) and 17 (fixed32).
const UNKNOWN_FIELDS: &[u8] = &[0x7a, 3, 1, 0xff, 2, 0x80, 0x01, 7, 0x8d, 0x01, 1, 2, 3, 4];

/// `message` in one frame, followed by unknown fields.
fn with_unknown_fields(message: &[u8]) -> Bytes {
    let message = Bytes::from([message, UNKNOWN_FIELDS].concat());
    frame(Chunks::from(message)).contiguous()
}

#[tokio::test]
async fn call_and_answer_are_forwarded_unchanged() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0]);
    let mut call = request(&image, "package");
    (call.tag, call.exec_path) = ("no constraint!".to_owned(), "/bin/sh".to_owned());
    let sent = with_unknown_fields(&call.encode_to_vec());
    let metadata = [
        ("user-agent", "grpc-go/1.80.0"),
        ("grpc-accept-encoding", "gzip"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-unknown", "1"),
        ("x-unknown", "2"),
        ("x-unknown-bin", "AAEC/w"),
        ("porch-fn-request", "kept"),
        ("grpc-timeout", "10S"),
    ];

    let message = EvaluateFunctionResponse { resource_list: "answer".into(), log: "log".into() };
    let mut reply = Reply::ok(Bytes::new(), "");
    reply.body = with_unknown_fields(&message.encode_to_vec());
    reply.headers.extend(headers(&[("x-header", "a"), ("x-header", "b"), ("x-header-bin", "//8")]));
    let kept =
        [("x-trailer", "c"), ("x-trailer", "d"), ("x-trailer-bin", "AA"), ("grpc-status-details-bin", "CAU")];
    let trailers = reply.trailers.as_mut().unwrap();
    trailers.extend(headers(&kept));
    let expected_trailers = trailers.clone();
    trailers.extend(headers(&[("porch-fn-retry", "no"), ("porch-fn-load", "3")]));
    fleet.runners[0].on(&image, Answer::Reply(reply.clone()));

    let raw = fleet.raw().await;
    let answer = raw.call(&metadata, sent.clone()).await;

    let call = fleet.runners[0].log().calls.remove(0);
    assert_eq!(call.framed, sent);
    let mut expected = raw.head().headers().clone();
    expected.extend(headers(&metadata));
    let mut arrived = call.headers.clone();
    let remaining = parse_timeout(&arrived).expect("well formed").expect("a deadline");
    assert!(remaining <= Duration::from_secs(10), "{remaining:?}");
    assert!(remaining > Duration::from_secs(5), "{remaining:?}");
    expected.remove("grpc-timeout");
    arrived.remove("grpc-timeout");
    assert_eq!(arrived, expected);

    assert_eq!(answer.code(), Code::Ok);
    assert_eq!(answer.headers, reply.headers);
    assert_eq!(answer.body, reply.body);
    assert_eq!(answer.trailers, Some(expected_trailers));
}

#[tokio::test]
async fn a_failure_is_forwarded_with_its_details_but_without_hop_headers() {
    let fleet = Fleet::of(1).await;
    let caller = fleet.raw().await;
    let details = [("grpc-status-details-bin", "CAUSBWVycm9y"), ("x-reason", "quota")];

    // The first reply has the status in its headers, the second in its trailers after a message.
    let mut short = Reply::status(Code::FailedPrecondition, "a%20b%0Ac");
    short.headers.extend(headers(&details));
    let mut long = Reply::ok(Bytes::from_static(b"partial"), "");
    long.trailers =
        Some(headers(&[("grpc-status", "9"), ("grpc-message", "a%20b%0Ac"), details[0], details[1]]));

    for mut reply in [short, long] {
        let expected = reply.clone();
        let status = reply.trailers.as_mut().unwrap_or(&mut reply.headers);
        status.extend(headers(&[("porch-fn-load", "3")]));
        fleet.runners[0].otherwise(Answer::Reply(reply));
        let answer = caller.call(&[], framed("set-image:v1", "package")).await;
        assert_eq!((answer.code(), answer.message().as_str()), (Code::FailedPrecondition, "a b\nc"));
        assert_eq!((answer.headers, answer.body), (expected.headers, expected.body));
        assert_eq!(answer.trailers, expected.trailers);
    }
}

#[tokio::test]
async fn a_second_attempt_gets_the_rest_of_the_deadline() {
    const ASKED: Duration = Duration::from_secs(20);
    const SPENT: Duration = Duration::from_millis(50);
    let (fleet, image, _) = Fleet::ordered(2, &[]).await;
    let gate = Gate::default();
    let cut = Answer::Break(Point::Start, How::Cut);
    fleet.runners[0].on(&image, Answer::Held(gate.clone(), Box::new(cut)));

    let caller = fleet.raw().await;
    let body = framed(&image, "package");
    let called = tokio::spawn(async move { caller.call(&[("grpc-timeout", "20S")], body).await });
    fleet.runners[0].wait("the first attempt", |log| log.calls.len() == 1).await;
    // The second attempt's deadline must be shorter than the first attempt's by at least this time.
    sleep(SPENT).await;
    gate.open();
    assert_eq!(called.await.unwrap().code(), Code::Ok);

    let first = parse_timeout(&fleet.runners[0].log().calls[0].headers).unwrap().unwrap();
    let second = parse_timeout(&fleet.runners[1].log().calls[0].headers).unwrap().unwrap();
    assert!(first <= ASKED, "{first:?}");
    assert!(second + SPENT <= first, "{first:?} {second:?}");
}

#[tokio::test]
async fn all_names_of_an_image_have_the_same_owner() {
    let fleet = Fleet::of(5).await;
    let caller = fleet.caller().await;
    let mut used = BTreeSet::new();
    for number in 0..100 {
        let short = format!("fn-{number}:v1");
        let full = format!("{PREFIX}/{short}");
        let owner = fleet.owner(&full);
        let before = owner.taken();
        for name in [&short, &full, &short] {
            caller.runner_of(name).await;
        }
        assert_eq!(owner.taken(), before + 3, "{short}");
        used.insert(owner.address());
    }
    assert_eq!(used.len(), 5, "100 images are spread over all runners");
    assert_eq!(fleet.taken().iter().sum::<usize>(), 300);
}

#[tokio::test]
async fn the_shards_page_lists_images_and_their_owners() {
    let fleet = Fleet::of(3).await;
    let (held, other) = (fleet.image(&[1]), fleet.image(&[2]));
    fleet.caller().await.runner_of(&other).await;
    let (gate, waiting) = fleet.hold(1, &held).await;

    let page = fleet.shards().await;
    let address = |index: usize| fleet.runners[index].address().to_string();
    let images: Vec<_> = page.images.iter().map(|one| (&*one.image, &*one.owner, one.in_flight)).collect();
    assert_eq!(images, [(&*held, &*address(1), 1), (&*other, &*address(2), 0)], "busiest first");
    for (index, expected) in
        [("healthy", 0, 0, 0, 0), ("healthy", 1, 1, 0, 1), ("healthy", 0, 1, 0, 1)].iter().enumerate()
    {
        let one = page.shards.iter().find(|one| one.address == address(index)).unwrap();
        assert_eq!((&*one.state, one.in_flight, one.calls, one.failures, one.owned), *expected);
    }
    gate.open();
    assert_eq!(waiting.await.unwrap().unwrap(), "1");
}

#[tokio::test]
async fn with_a_tag_constraint_the_repository_selects_the_runner() {
    let fleet = Fleet::of(5).await;
    let client = fleet.caller().await;
    let mut apart = 0;
    for number in 0..20 {
        let repository = format!("{PREFIX}/fn-{number}");
        let image = format!("{repository}:v1");
        let by_repository = fleet.owner(&repository).address();
        let by_image = fleet.owner(&image).address();
        apart += usize::from(by_repository != by_image);
        for (tag, owner) in
            [("~0.4.0", by_repository), (">=0.3, <0.5", by_repository), ("no constraint!", by_image)]
        {
            let owner = fleet.runners.iter().find(|runner| runner.address() == owner).unwrap();
            let before = owner.taken();
            let mut call = request(&image, "package");
            tag.clone_into(&mut call.tag);
            // `exec_path` does not affect the choice of the runner.
            call.exec_path = format!("/{tag}");
            client.send(call).await.unwrap();
            assert_eq!(owner.taken(), before + 1, "{image} {tag}");
        }
    }
    assert!(apart > 0, "the two keys must differ for some image");
}

#[tokio::test]
async fn an_invalid_image_is_forwarded_so_that_the_runner_refuses_it() {
    let fleet = Fleet::of(3).await;
    let caller = fleet.caller().await;
    let long = "x".repeat(4096);
    for image in ["!!! not an image", "UPPER/case:v1", "a:b:c", "ünïcödé", " ", "\n", &long] {
        assert_eq!(shard_key(image, "", PREFIX), image);
        let owner = fleet.owner(image);
        let before = owner.taken();
        caller.runner_of(image).await;
        assert_eq!(owner.taken(), before + 1, "{image}");
        assert_eq!(owner.log().calls.last().unwrap().framed, framed(image, "package"));
    }
}

/// The tests of common/image cover which patterns match, and the error text.
#[tokio::test]
async fn a_call_of_a_forbidden_image_reaches_no_runner() {
    let fleet = Fleet::with(1, &["--allowed-images=set-*:v1", "--allowed-images=quay.io/fn/*"]).await;
    let caller = fleet.caller().await;
    for image in ["set-image:v1", "quay.io/fn/f"] {
        assert_eq!(caller.runner_of(image).await, "0");
    }
    for image in ["set-image:v2", "quay.io/other", "Not An Image"] {
        let status = caller.evaluate(image, "package").await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    }
    assert_eq!(fleet.taken(), [2], "a refused call reached the runner");
}

/// An answer that reports this many other calls in flight on the runner.
fn loaded(load: usize) -> Answer {
    let mut reply = Reply::ok("package".into(), "loaded");
    reply.trailers.get_or_insert_default().extend(headers(&[("porch-fn-load", &load.to_string())]));
    Answer::Reply(reply)
}

/// Makes 35 simultaneous calls of an image. Returns the number of calls at each runner, in the
/// image's order. If `load` is set, the second runner reports this load before each call.
async fn spread(load: Option<usize>) -> Vec<usize> {
    let fleet = Fleet::of(3).await;
    let (busy, other, idle) = (fleet.image(&[0, 1, 2]), fleet.image(&[1, 0, 2]), fleet.image(&[0, 2]));
    let caller = fleet.caller().await;
    let sent = framed(&busy, "package");
    let taken = || {
        let count =
            |runner: &FakeRunner| runner.log().calls.iter().filter(|call| call.framed == sent).count();
        fleet.runners.iter().map(count).collect::<Vec<_>>()
    };
    let gate = Gate::default();
    fleet.runners.iter().for_each(|runner| runner.on(&busy, gate.echo()));
    let mut calls = Vec::new();
    for sent in 1..=35 {
        // A load report expires after a few seconds, so it is repeated before each call.
        if let Some(load) = load {
            fleet.runners[1].on(&other, loaded(load));
            assert_eq!(caller.runner_of(&other).await, "loaded");
        }
        // Wait until the call is on a runner, so that the router counts it before the next call.
        calls.push(caller.spawn(&busy));
        while taken().iter().sum::<usize>() < sent {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(caller.runner_of(&idle).await, "0", "the busy image does not move the other one");
    gate.open();
    for call in calls {
        soon("an answer", call).await.unwrap().unwrap();
    }
    taken()
}

#[tokio::test]
async fn a_busy_image_overflows_to_the_next_runners_but_not_to_a_busy_one() {
    let taken = spread(None).await;
    assert!(taken.iter().all(|&calls| calls <= 20), "more than half on one of three: {taken:?}");
    assert!(taken[1] > 0, "without load reports, the second runner gets calls: {taken:?}");
    let taken = spread(Some(40)).await;
    assert!(taken[1] == 0 && taken[2] > 0, "{taken:?}");
}
