//! Which failures move a call to another runner, and how often.

use bytes::Bytes;
use futures_util::future::join_all;
use h2::Reason;
use http::StatusCode;
use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, FakeRunner, Gate, How, Point, Reply, headers, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant, sleep};
use tonic::Code;

use super::NO_RUNNER_WAIT;

const NOT_SENT: &str = "porch_fn_router_attempts_total{outcome=\"NotSent\"}";
const BROKEN: &str = "porch_fn_router_attempts_total{outcome=\"Broken\"}";
const SHED: &str = "porch_fn_router_attempts_total{outcome=\"Shed\"}";
const ANSWERED: &str = "porch_fn_router_attempts_total{outcome=\"Answered\"}";
const IMAGE: &str = "set-image:v1";

/// Every way in which a hop breaks once the request was sent.
fn breaks() -> impl Iterator<Item = Answer> {
    let points = [Point::Start, Point::Headers, Point::HalfMessage, Point::Message];
    let hows = [
        How::Cut,
        How::GoAwayThenCut,
        How::End,
        How::Reset(Reason::INTERNAL_ERROR),
        How::Reset(Reason::CANCEL),
        How::Reset(Reason::NO_ERROR),
    ];
    points.into_iter().flat_map(move |point| hows.map(|how| Answer::Break(point, how)))
}

#[tokio::test]
async fn closed_ports_are_passed_by_without_limit() {
    let mut fleet = Fleet::of(4).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    for runner in &mut fleet.runners[..3] {
        // The health stream goes on, so that the router learns of the closed port from the call.
        runner.close_port().await;
        runner.go_away();
    }
    assert_eq!(fleet.caller().await.runner_of(&image).await, "3");
    assert_eq!(fleet.taken(), [0, 0, 0, 1]);
    assert_eq!(fleet.metric(NOT_SENT).await, 3);
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "unreachable"), (3, "well")]).await;
}

#[tokio::test]
async fn refused_streams_are_passed_by_without_limit() {
    let fleet = Fleet::of(4).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    for runner in &fleet.runners[..3] {
        runner.on(&image, Answer::Break(Point::Start, How::Reset(Reason::REFUSED_STREAM)));
    }
    assert_eq!(fleet.caller().await.runner_of(&image).await, "3");
    // The client library tries a refused stream once more on the same runner.
    assert_eq!(fleet.metric(NOT_SENT).await, 3);
    assert_eq!(fleet.taken()[3], 1);
}

#[tokio::test]
async fn a_reset_stream_says_nothing_about_its_runner() {
    for how in [How::Reset(Reason::REFUSED_STREAM), How::Reset(Reason::INTERNAL_ERROR)] {
        let fleet = Fleet::of(2).await;
        let image = fleet.image(&[0, 1]);
        fleet.runners[0].on(&image, Answer::Break(Point::Start, how));
        let caller = fleet.caller().await;
        assert_eq!(caller.runner_of(&image).await, "1");
        fleet.wait_states(&[(0, "well"), (1, "well")]).await;
        fleet.runners[0].on(&image, Answer::Echo);
        assert_eq!(caller.runner_of(&image).await, "0");
    }
}

#[tokio::test]
async fn a_go_away_that_spares_the_call_is_dialled_anew() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].go_away_at_next_call();
    assert_eq!(fleet.caller().await.runner_of(&image).await, "0");
    assert_eq!(fleet.taken(), [1, 0]);
}

#[tokio::test]
async fn a_go_away_of_a_runner_that_is_gone_is_passed_by_without_limit() {
    let mut fleet = Fleet::of(4).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    for runner in &mut fleet.runners[..3] {
        runner.close_port().await;
        runner.go_away_at_next_call();
    }
    assert_eq!(fleet.caller().await.runner_of(&image).await, "3");
    assert_eq!(fleet.taken(), [0, 0, 0, 1]);
    assert_eq!(fleet.metric(NOT_SENT).await, 3);
}

#[tokio::test]
async fn a_runner_that_ends_its_connection_finishes_the_calls_on_it() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    let caller = fleet.caller().await;
    let call = || {
        let (caller, image) = (caller.clone(), image.clone());
        tokio::spawn(async move { caller.runner_of(&image).await })
    };
    let first = call();
    fleet.runners[0].wait("the first call", |log| log.calls.len() == 1).await;
    fleet.runners[0].go_away();
    let second = call();
    fleet.runners[0].wait("the second call", |log| log.calls.len() == 2).await;
    gate.open();
    let both = async { (first.await.unwrap(), second.await.unwrap()) };
    assert_eq!(soon("answers", both).await, ("0".to_owned(), "0".to_owned()));
    assert_eq!(fleet.metric(NOT_SENT).await, 0);
}

#[tokio::test]
async fn a_broken_hop_is_tried_on_one_more_runner_and_the_caller_sees_one_whole_answer() {
    for answer in breaks() {
        let fleet = Fleet::of(3).await;
        let image = fleet.image(&[0, 1, 2]);
        fleet.runners[0].on(&image, answer.clone());
        let package = "package ".repeat(1000);
        let raw = fleet.raw().await.call(&[], framed(&image, package.clone())).await;
        assert_eq!(raw.code(), Code::Ok, "{answer:?}: {}", raw.message());
        assert_eq!(raw.body, Reply::ok(package.into(), "1").body, "{answer:?}");
        assert_eq!(fleet.taken(), [1, 1, 0], "{answer:?}");
        assert_eq!(fleet.metric(BROKEN).await, 1, "{answer:?}");
    }
}

#[tokio::test]
async fn a_call_that_breaks_two_runners_never_reaches_a_third() {
    for answer in breaks() {
        let fleet = Fleet::of(3).await;
        let image = fleet.image(&[0, 1, 2]);
        fleet.runners[0].on(&image, answer.clone());
        fleet.runners[1].on(&image, answer.clone());
        let status = fleet.caller().await.evaluate(&image, "package").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{answer:?}");
        assert!(
            status.message().starts_with("two function runners broke off during this call"),
            "{status:?}"
        );
        assert!(status.message().contains("not sent a third time"), "{status:?}");
        assert_eq!(fleet.taken(), [1, 1, 0], "{answer:?}");
    }
}

#[tokio::test]
async fn an_only_runner_is_the_one_more_when_it_is_back() {
    let fleet = Fleet::of(1).await;
    fleet.runners[0].on("set-image:v1", Answer::Break(Point::Start, How::Cut));
    let status = fleet.caller().await.evaluate("set-image:v1", "package").await.unwrap_err();
    assert!(status.message().starts_with("two function runners broke off"), "{status:?}");
    assert_eq!(fleet.taken(), [2]);
}

#[tokio::test]
async fn a_call_that_waited_for_a_runner_waits_anew_when_that_one_breaks() {
    let mut fleet = Fleet::start(vec![FakeRunner::stopped("0").await], &[]).await;
    let gate = Gate::new();
    let breaks = Answer::Break(Point::Start, How::Cut);
    fleet.runners[0].on(IMAGE, Answer::Held(gate.clone(), Box::new(breaks)));
    let caller = fleet.caller().await;
    let call = tokio::spawn(async move { caller.evaluate(IMAGE, "package").await });
    let waiting = async {
        while fleet.shards().await.images.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the waiting call", waiting).await;
    fleet.runners[0].restart().await;
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    fleet.runners[0].on(IMAGE, Answer::Echo);
    // The function runs for longer than a call waits for a runner.
    sleep(Duration::from_secs(6)).await;
    gate.open();
    assert_eq!(soon("an answer", call).await.unwrap().unwrap().into_inner().log, "0");
}

#[tokio::test]
async fn an_only_runner_that_resets_a_stream_is_the_one_more_at_once() {
    let fleet = Fleet::of(1).await;
    fleet.runners[0].on(IMAGE, Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR)));
    let caller = fleet.caller().await;
    let started = Instant::now();
    let status = caller.evaluate(IMAGE, "package").await.unwrap_err();
    assert!(status.message().starts_with("two function runners broke off"), "{status:?}");
    assert_eq!(fleet.taken(), [2]);
    assert!(started.elapsed() < NO_RUNNER_WAIT, "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_only_runner_that_refuses_streams_is_asked_again_until_it_takes_the_call() {
    let fleet = Fleet::of(1).await;
    fleet.runners[0].on(IMAGE, Answer::Break(Point::Start, How::Reset(Reason::REFUSED_STREAM)));
    let caller = fleet.caller().await;
    let call = tokio::spawn(async move { caller.runner_of(IMAGE).await });
    // Each attempt is two.
    fleet.runners[0].wait("a second attempt", |log| log.calls.len() >= 3).await;
    fleet.runners[0].on(IMAGE, Answer::Echo);
    assert_eq!(soon("an answer", call).await.unwrap(), "0");
}

#[tokio::test]
async fn when_all_that_are_ready_refuse_the_caller_reads_just_that() {
    let fleet = Fleet::of(2).await;
    for runner in &fleet.runners {
        runner.otherwise(Answer::Break(Point::Start, How::Reset(Reason::REFUSED_STREAM)));
    }
    let answer = fleet.raw().await.call(&[("grpc-timeout", "20S")], framed(IMAGE, "package")).await;
    assert_eq!(answer.code(), Code::Unavailable);
    assert!(answer.message().starts_with("no ready function runner took the call"), "{}", answer.message());
}

#[tokio::test]
async fn what_is_no_grpc_answer_is_a_broken_hop() {
    // As a proxy between the hops would say it, with and without a text.
    for body in ["", "upstream connect error"] {
        let fleet = Fleet::of(2).await;
        let image = fleet.image(&[0, 1]);
        let reply = Reply {
            status: StatusCode::SERVICE_UNAVAILABLE,
            headers: headers(&[("content-type", "text/plain")]),
            body: Bytes::from_static(body.as_bytes()),
            trailers: None,
        };
        fleet.runners[0].on(&image, Answer::Reply(reply));
        assert_eq!(fleet.caller().await.runner_of(&image).await, "1", "{body:?}");
        assert_eq!(fleet.taken(), [1, 1]);
    }
}

#[tokio::test]
async fn closed_ports_do_not_use_up_the_one_attempt_more() {
    let mut fleet = Fleet::of(4).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    fleet.runners[1].on(&image, Answer::Break(Point::HalfMessage, How::Cut));
    for index in [0, 2] {
        fleet.runners[index].close_port().await;
        fleet.runners[index].go_away();
    }
    assert_eq!(fleet.caller().await.runner_of(&image).await, "3");
    assert_eq!(fleet.taken(), [0, 1, 0, 1]);
}

#[tokio::test]
async fn a_status_that_a_runner_sent_is_the_answer() {
    let fleet = Fleet::of(3).await;
    let caller = fleet.caller().await;
    for code in 1..=16 {
        let code = Code::from(code);
        let image = fleet.image(&[0, 1, 2]);
        fleet.runners[0].on(&image, Answer::Reply(Reply::status(code, "of the function")));
        let before = fleet.taken();
        let status = caller.evaluate(&image, "package").await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "of the function"));
        assert_eq!(fleet.taken(), [before[0] + 1, 0, 0], "{code:?} is not tried elsewhere");
    }
    fleet.wait_all("well").await;
}

#[tokio::test]
async fn an_answer_before_the_request_is_read_is_the_answer() {
    let fleet = Fleet::of(2).await;
    let refusal = Reply::status(Code::ResourceExhausted, "too large for me");
    for runner in &fleet.runners {
        runner.otherwise(Answer::Unread(Box::new(Answer::Reply(refusal.clone()))));
    }
    let package = Bytes::from(vec![b'x'; 5 * 1024 * 1024]);
    let status = fleet.caller().await.evaluate("fn:v1", package).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "too large for me"));
    for (outcome, attempts) in [(ANSWERED, 1), (NOT_SENT, 0), (BROKEN, 0), (SHED, 0)] {
        assert_eq!(fleet.metric(outcome).await, attempts, "{outcome}");
    }
}

#[tokio::test]
async fn a_shed_call_is_tried_on_one_more_runner() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "0 is full")));
    assert_eq!(fleet.caller().await.runner_of(&image).await, "1");
    assert_eq!(fleet.taken(), [1, 1, 0]);
    assert_eq!(fleet.metric(SHED).await, 1);
    // A runner that sheds is well.
    fleet.wait_all("well").await;
}

/// Nothing was done for a call that is shed, so it still may break once.
#[tokio::test]
async fn a_call_that_is_shed_and_then_breaks_is_served_by_a_third() {
    for (shed, breaks) in [(0, 1), (1, 0)] {
        let fleet = Fleet::of(3).await;
        let image = fleet.image(&[0, 1, 2]);
        fleet.runners[shed].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "full")));
        fleet.runners[breaks].on(&image, Answer::Break(Point::Headers, How::Reset(Reason::INTERNAL_ERROR)));
        assert_eq!(fleet.caller().await.runner_of(&image).await, "2");
        assert_eq!(fleet.taken(), [1, 1, 1]);
    }
}

#[tokio::test]
async fn when_two_runners_shed_the_second_ones_refusal_comes_back() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].on(&image, Answer::Reply(Reply::shed(Code::Unavailable, "0 is full")));
    fleet.runners[1].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "1 is full")));
    let answer = fleet.raw().await.call(&[], framed(&image, "package")).await;
    assert_eq!((answer.code(), answer.message().as_str()), (Code::ResourceExhausted, "1 is full"));
    assert!(!answer.status_headers().contains_key("porch-fn-retry"));
    assert_eq!(fleet.taken(), [1, 1, 0]);
}

#[tokio::test]
async fn when_nobody_else_takes_a_shed_call_the_refusal_comes_back_at_once() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "0 is full")));
    fleet.runners[1].crash().await;
    fleet.wait_states(&[(1, "unreachable")]).await;
    let caller = fleet.caller().await;
    let started = Instant::now();
    let status = caller.evaluate(&image, "package").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "0 is full"));
    assert!(started.elapsed() < NO_RUNNER_WAIT, "it is not waited for another runner");
}

#[tokio::test]
async fn another_word_in_the_trailer_is_no_reason_to_retry() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let mut reply = Reply::status(Code::ResourceExhausted, "full");
    reply.headers.extend(headers(&[("porch-fn-retry", "later")]));
    fleet.runners[0].on(&image, Answer::Reply(reply));
    let answer = fleet.raw().await.call(&[], framed(&image, "package")).await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    assert!(!answer.status_headers().contains_key("porch-fn-retry"));
    assert_eq!(fleet.taken(), [1, 0]);
}

#[tokio::test]
async fn when_a_runner_dies_all_of_its_calls_move_on() {
    const CALLS: usize = 64;
    let mut fleet = Fleet::of(3).await;
    let gate = Gate::new();
    fleet.runners[0].otherwise(gate.echo());
    let image = fleet.image(&[0]);
    let caller = fleet.caller().await;
    let calls = (0..CALLS).map(|_| {
        let (caller, image) = (caller.clone(), image.clone());
        tokio::spawn(async move { caller.evaluate(&image, "package").await.map(|_| ()) })
    });
    let calls: Vec<_> = calls.collect();
    // Some spill to other runners; those that are with this one are cut off in the middle.
    fleet.runners[0].wait("its calls", |log| log.calls.len() >= 8).await;
    fleet.runners[0].crash().await;
    for ended in join_all(calls).await {
        ended.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_calls_of_a_hung_runner_move_on() {
    let mut fleet = Fleet::of(3).await;
    let (small, large) = (fleet.image(&[0, 2]), fleet.image(&[1, 2]));
    fleet.runners[0].on(&small, Gate::new().echo());
    let caller = fleet.caller().await;
    let held = tokio::spawn({
        let (caller, small) = (caller.clone(), small.clone());
        async move { caller.runner_of(&small).await }
    });
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    fleet.runners[0].hang().await;
    fleet.runners[1].hang().await;
    let hung = Instant::now();
    // One call that is there already, one that comes to a connection which looks alive, and one whose bytes do
    // not fit into the socket.
    let late = caller.runner_of(&small);
    let large = caller.evaluate(&large, vec![b'x'; 5 * 1024 * 1024]);
    let (held, late, large) = soon("answers", Box::pin(async { tokio::join!(held, late, large) })).await;
    assert_eq!((held.unwrap().as_str(), late.as_str()), ("2", "2"));
    assert_eq!(large.unwrap().into_inner().log, "2");
    // Pings go every 2 s and are waited for 2 s; the rest is for a slow machine. That it was pings shows in the states.
    assert!(hung.elapsed() < Duration::from_secs(25), "{:?}", hung.elapsed());
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "well")]).await;
}
