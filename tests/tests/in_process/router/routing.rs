//! What arrives at which runner, and that nothing of it is changed on the way.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use porch_fn_grpc::parse_timeout;
use porch_fn_image::shard_key;
use porch_fn_proto::evaluator::EvaluateFunctionResponse;
use porch_fn_proto::{Chunks, PREFIX_LEN, frame};
use porch_fn_tests::caller::{framed, request};
use porch_fn_tests::fake_runner::{Answer, Gate, How, Point, Reply, headers, soon};
use porch_fn_tests::fleet::{Fleet, PREFIX};
use prost::Message;
use tokio::time::{Duration, sleep};
use tonic::Code;

/// Fields 15 (bytes), 16 (varint) and 17 (fixed32), which nobody knows.
const UNKNOWN_FIELDS: &[u8] = &[0x7a, 3, 1, 0xff, 2, 0x80, 0x01, 7, 0x8d, 0x01, 1, 2, 3, 4];

/// `message` in one frame, with fields that nobody knows behind it.
fn with_unknown_fields(message: &[u8]) -> Bytes {
    let message = Bytes::from([message, UNKNOWN_FIELDS].concat());
    frame(Chunks::from(message)).contiguous()
}

#[tokio::test]
async fn a_call_passes_both_ways_unchanged() {
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
    trailers.extend(headers(&[("porch-fn-retry", "no"), ("porch-fn-in-flight", "3")]));
    fleet.runners[0].on(&image, Answer::Reply(reply.clone()));

    let raw = fleet.raw().await;
    let answer = raw.call(&metadata, sent.clone()).await;

    let call = fleet.runners[0].log().calls.remove(0);
    assert_eq!(call.framed, sent);
    let mut expected = raw.head().headers().clone();
    expected.extend(headers(&metadata));
    let mut arrived = call.headers.clone();
    let remaining = parse_timeout(&arrived).expect("a deadline");
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
async fn a_failure_passes_with_its_details_and_without_what_is_between_hops() {
    let fleet = Fleet::of(1).await;
    let caller = fleet.raw().await;
    let details = [("grpc-status-details-bin", "CAUSBWVycm9y"), ("x-reason", "quota")];

    // In headers alone, and in trailers behind a message.
    let mut short = Reply::status(Code::FailedPrecondition, "a%20b%0Ac");
    short.headers.extend(headers(&details));
    let mut long = Reply::ok(Bytes::from_static(b"partial"), "");
    long.trailers =
        Some(headers(&[("grpc-status", "9"), ("grpc-message", "a%20b%0Ac"), details[0], details[1]]));

    for mut reply in [short, long] {
        let expected = reply.clone();
        let status = reply.trailers.as_mut().unwrap_or(&mut reply.headers);
        status.extend(headers(&[("porch-fn-in-flight", "3")]));
        fleet.runners[0].otherwise(Answer::Reply(reply));
        let answer = caller.call(&[], framed("set-image:v1", "package")).await;
        assert_eq!((answer.code(), answer.message().as_str()), (Code::FailedPrecondition, "a b\nc"));
        assert_eq!((answer.headers, answer.body), (expected.headers, expected.body));
        assert_eq!(answer.trailers, expected.trailers);
    }
}

#[tokio::test]
async fn a_second_attempt_is_given_what_remains_of_the_deadline() {
    const ASKED: Duration = Duration::from_secs(20);
    const SPENT: Duration = Duration::from_millis(50);
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    let cut = Answer::Break(Point::Start, How::Cut);
    fleet.runners[0].on(&image, Answer::Held(gate.clone(), Box::new(cut)));

    let caller = fleet.raw().await;
    let body = framed(&image, "package");
    let called = tokio::spawn(async move { caller.call(&[("grpc-timeout", "20S")], body).await });
    fleet.runners[0].wait("the first attempt", |log| log.calls.len() == 1).await;
    // Time that has to be missing from the second attempt's.
    sleep(SPENT).await;
    gate.open();
    assert_eq!(called.await.unwrap().code(), Code::Ok);

    let first = parse_timeout(&fleet.runners[0].log().calls[0].headers).unwrap();
    let second = parse_timeout(&fleet.runners[1].log().calls[0].headers).unwrap();
    assert!(first <= ASKED, "{first:?}");
    assert!(second + SPENT <= first, "{first:?} {second:?}");
}

#[tokio::test]
async fn an_image_is_always_with_its_owner_under_all_its_names() {
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
async fn the_shards_page_shows_who_owns_what() {
    let fleet = Fleet::of(3).await;
    let caller = fleet.caller().await;
    let gate = Gate::new();
    let held = fleet.image(&[1]);
    fleet.runners[1].on(&held, gate.echo());
    let other = fleet.image(&[2]);
    caller.runner_of(&other).await;
    let waiting = tokio::spawn({
        let (caller, held) = (caller.clone(), held.clone());
        async move { caller.runner_of(&held).await }
    });
    fleet.runners[1].wait("the call", |log| log.calls.len() == 1).await;

    let page = fleet.shards().await;
    let address = |index: usize| fleet.runners[index].address().to_string();
    let images: HashMap<_, _> =
        page.images.iter().map(|image| (&*image.image, (&*image.owner, image.in_flight))).collect();
    assert_eq!(images[&*held], (&*address(1), 1));
    assert_eq!(images[&*other], (&*address(2), 0));
    let shards: HashMap<_, _> = page
        .shards
        .iter()
        .map(|shard| {
            (&*shard.address, (&*shard.state, shard.in_flight, shard.calls, shard.failures, shard.owned))
        })
        .collect();
    assert_eq!(shards[&*address(0)], ("well", 0, 0, 0, 0));
    assert_eq!(shards[&*address(1)], ("well", 1, 1, 0, 1));
    assert_eq!(shards[&*address(2)], ("well", 0, 1, 0, 1));
    gate.open();
    assert_eq!(waiting.await.unwrap(), "1");
}

#[tokio::test]
async fn with_a_tag_constraint_the_repository_decides() {
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
            // Chooses nothing.
            call.exec_path = format!("/{tag}");
            client.send(tonic::Request::new(call)).await.unwrap();
            assert_eq!(owner.taken(), before + 1, "{image} {tag}");
        }
    }
    assert!(apart > 0, "the two keys must differ for some image");
}

#[tokio::test]
async fn what_is_no_image_is_forwarded_for_the_runner_to_refuse() {
    let fleet = Fleet::of(3).await;
    let caller = fleet.caller().await;
    let long = "x".repeat(4096);
    for image in ["!!! not an image", "UPPER/case:v1", "a:b:c", "ünïcödé", " ", "\n", &long] {
        assert!(matches!(shard_key(image, None, PREFIX), std::borrow::Cow::Borrowed(_)), "{image}");
        let owner = fleet.owner(image);
        let before = owner.taken();
        caller.runner_of(image).await;
        assert_eq!(owner.taken(), before + 1, "{image}");
        assert_eq!(owner.log().calls.last().unwrap().framed, framed(image, "package"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_calls_at_once_on_one_connection_all_get_their_own_answer() {
    const CALLS: usize = 200;
    let fleet = Arc::new(Fleet::of(3).await);
    let gate = Gate::new();
    fleet.runners.iter().for_each(|runner| runner.otherwise(gate.echo()));
    let caller = fleet.caller().await;
    let calls = (0..CALLS).map(|number| {
        let caller = caller.clone();
        async move {
            let package = format!("package {number}");
            let answer = caller.evaluate(&format!("fn-{}:v1", number % 10), package.clone()).await;
            assert_eq!(answer.unwrap().into_inner().resource_list, package);
        }
    });
    let opener = async {
        // All of them are held at once before the first is answered.
        let all = async {
            while fleet.taken().iter().sum::<usize>() < CALLS {
                sleep(Duration::from_millis(1)).await;
            }
        };
        soon("all calls at the runners", all).await;
        gate.open();
    };
    tokio::join!(join_all(calls), opener);
    assert_eq!(fleet.taken().iter().sum::<usize>(), CALLS);
    assert_eq!(fleet.metric("porch_fn_router_calls_total{code=\"OK\"}").await, CALLS as u64);
}

#[tokio::test]
async fn a_busy_image_spills_and_the_others_stay_home() {
    const HOT: usize = 40;
    let fleet = Fleet::of(3).await;
    let hot = fleet.image(&[0, 1]);
    let cold = fleet.image(&[0, 2]);
    assert_ne!(hot, cold);
    let gate = Gate::new();
    fleet.runners.iter().for_each(|runner| runner.on(&hot, gate.echo()));
    let caller = fleet.caller().await;
    let mut calls = Vec::new();
    for sent in 1..=HOT {
        let (caller, hot) = (caller.clone(), hot.clone());
        calls.push(tokio::spawn(async move { caller.runner_of(&hot).await }));
        // One after the other, so that each sees the load of those before it.
        let arrived = async {
            while fleet.taken().iter().sum::<usize>() < sent {
                sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the call at a runner", arrived).await;
    }
    let taken = fleet.taken();
    assert!(taken.iter().all(|&calls| calls <= HOT / 2), "more than half on one of three: {taken:?}");
    assert_eq!(caller.runner_of(&cold).await, "0", "a cold image is not pushed out by a hot one");
    gate.open();
    for call in calls {
        soon("an answer", call).await.unwrap();
    }
}

#[tokio::test]
async fn five_mebibytes_pass_both_ways() {
    let fleet = Fleet::of(2).await;
    let caller = fleet.caller().await;
    let package: Bytes = (0..5 * 1024 * 1024).map(|byte: u32| (byte % 251) as u8).collect();
    let answer = caller.evaluate("fn:v1", package.clone()).await.unwrap().into_inner();
    assert!(answer.resource_list == package, "the package came back changed");
    let sent = framed("fn:v1", package);
    let seen = fleet.runners.iter().flat_map(|runner| runner.log().calls).next().unwrap();
    assert!(seen.framed == sent && sent.len() > PREFIX_LEN, "the package arrived changed");
}
