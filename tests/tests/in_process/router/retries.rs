//! Which failures move a call to another runner, and how many times.

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
const REFUSED: Answer = Answer::Break(Point::Start, How::Reset(Reason::REFUSED_STREAM));
const RESET: Answer = Answer::Break(Point::Headers, How::Reset(Reason::INTERNAL_ERROR));
const CUT: Answer = Answer::Break(Point::Start, How::Cut);
const TWICE: &str =
    "the connections to two function runners were lost during this call; it is not sent a third time";
const ONCE: &str =
    "the connection to a function runner was lost during this call, and no other runner takes the call";
const IMAGE: &str = "set-image:v1";
/// Envoy's error for a server that it cannot reach.
const OF_A_PROXY: &str = "upstream connect error or disconnect/reset before headers. reset reason: connection \
                          failure, transport failure reason: delayed connect error: 10.1.2.3:9445";
/// Frequent pings, so that the router soon detects a runner that hangs.
const PINGS: [&str; 2] = ["--keepalive-time=300ms", "--keepalive-timeout=300ms"];

/// Every way in which a connection can break after the request was sent.
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

fn shed(code: Code, text: &str) -> Answer {
    Answer::Reply(Reply::shed(code, text))
}

fn of_a_proxy(body: &'static str) -> Answer {
    Answer::Reply(Reply {
        status: StatusCode::SERVICE_UNAVAILABLE,
        headers: headers(&[("content-type", "text/plain")]),
        body: Bytes::from_static(body.as_bytes()),
        trailers: None,
    })
}

#[tokio::test]
async fn some_answers_move_a_call_to_the_next_runner() {
    let full = |text| shed(Code::ResourceExhausted, text);
    let mut later = Reply::status(Code::ResourceExhausted, "an unknown mark");
    later.headers.extend(headers(&[("porch-fn-retry", "later")]));
    // The columns are: the runners' answers, in the order in which the router prefers the runners;
    // the name of the runner that served the call, or the call's error; the calls at each runner.
    let mut table = vec![
        (vec![of_a_proxy(""), Answer::Echo], Ok("1"), vec![1, 1]),
        (vec![of_a_proxy("upstream connect error"), Answer::Echo], Ok("1"), vec![1, 1]),
        // A refused stream means that the runner did not process the call. So the router opens a
        // second stream to the same runner before it tries the next runner.
        (vec![REFUSED, Answer::Echo], Ok("1"), vec![2, 1]),
        (vec![full("0 is full"), Answer::Echo, Answer::Echo], Ok("1"), vec![1, 1, 0]),
        // A runner that sheds a call has not run it. So the call does not count towards the limit
        // of lost connections.
        (vec![full("0 is full"), RESET, Answer::Echo], Ok("2"), vec![1, 1, 1]),
        (vec![RESET, full("1 is full"), Answer::Echo], Ok("2"), vec![1, 1, 1]),
        (
            vec![shed(Code::Unavailable, "0"), full("1 is full"), Answer::Echo],
            Err((Code::ResourceExhausted, "1 is full")),
            vec![1, 1, 0],
        ),
        (vec![full("0 is full"), RESET, RESET], Err((Code::Unavailable, TWICE)), vec![1, 1, 1]),
        (vec![full("0 is full"), RESET], Err((Code::Unavailable, ONCE)), vec![1, 1]),
        (vec![full("0 is full"), RESET, full("2 is full")], Err((Code::Unavailable, ONCE)), vec![1, 1, 1]),
        (
            vec![Answer::Reply(later), Answer::Echo],
            Err((Code::ResourceExhausted, "an unknown mark")),
            vec![1, 0],
        ),
    ];
    for broken in breaks() {
        table.push((vec![broken.clone(), Answer::Echo, Answer::Echo], Ok("1"), vec![1, 1, 0]));
        let twice = vec![broken.clone(), broken, Answer::Echo];
        table.push((twice, Err((Code::Unavailable, TWICE)), vec![1, 1, 0]));
    }
    for code in (1..=16).map(Code::from) {
        let answer = Answer::Reply(Reply::status(code, "of the function"));
        table.push((vec![answer, Answer::Echo], Err((code, "of the function")), vec![1, 0]));
    }
    for (answers, served, taken) in table {
        let (fleet, image, caller) = Fleet::ordered(answers.len(), &[]).await;
        for (runner, answer) in fleet.runners.iter().zip(&answers) {
            runner.on(&image, answer.clone());
        }
        let began = Instant::now();
        let package = "package ".repeat(1000);
        let answer = fleet.raw().await.call(&[], framed(&image, package.clone())).await;
        match served {
            Ok(runner) => {
                assert_eq!(answer.code(), Code::Ok, "{answers:?}: {}", answer.message());
                assert_eq!(answer.body, Reply::ok(package.into(), runner).body, "{answers:?}");
            }
            Err((code, text)) => {
                assert_eq!(answer.code(), code, "{answers:?}: {}", answer.message());
                assert!(answer.message().starts_with(text), "{answers:?}: {}", answer.message());
                assert!(!answer.status_headers().contains_key("porch-fn-retry"), "{answers:?}");
            }
        }
        assert_eq!(fleet.taken(), taken, "{answers:?}");
        assert!(began.elapsed() < NO_RUNNER_WAIT, "{answers:?}: it waited for another runner");
        if served == Ok("2") {
            for outcome in ["Answered", "Shed", "Broken"] {
                let attempts = format!("porch_fn_router_attempts_total{{outcome=\"{outcome}\"}}");
                assert_eq!(fleet.metric(&attempts).await, 1, "{outcome}");
            }
        }
        if matches!(answers[0], Answer::Break(_, How::Reset(_))) {
            // One reset stream does not make the runner unhealthy.
            fleet.wait_all("healthy").await;
            fleet.runners[0].on(&image, Answer::Echo);
            assert_eq!(caller.runner_of(&image).await, "0", "{answers:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_sent_before_the_request_is_read_is_final() {
    let fleet = Fleet::of(2).await;
    let refusal = Answer::Reply(Reply::status(Code::ResourceExhausted, "too large for me"));
    fleet.runners.iter().for_each(|runner| runner.otherwise(Answer::Unread(Box::new(refusal.clone()))));
    let status = fleet.caller().await.evaluate(IMAGE, vec![b'x'; 5 * 1024 * 1024]).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "too large for me"));
    assert_eq!(
        (fleet.runners[0].log().begun + fleet.runners[1].log().begun, fleet.metric(NOT_SENT).await),
        (1, 0)
    );
}

#[tokio::test]
async fn runners_that_did_not_accept_the_call_are_skipped_without_limit() {
    for how in ["closed port", "closed port at the next call", "refused stream", "beside one that breaks"] {
        let (mut fleet, image, caller) = Fleet::ordered(4, &[]).await;
        for (index, runner) in fleet.runners[..3].iter_mut().enumerate() {
            match (how, index) {
                ("refused stream", _) => runner.on(&image, REFUSED),
                ("beside one that breaks", 1) => {
                    runner.on(&image, Answer::Break(Point::HalfMessage, How::Cut));
                }
                _ => {
                    // The health stream stays open, so that only the call detects the closed port.
                    runner.close_port().await;
                    if how == "closed port at the next call" {
                        runner.go_away_at_next_call();
                    } else {
                        runner.go_away();
                    }
                }
            }
        }
        assert_eq!(caller.runner_of(&image).await, "3", "{how}");
        let breaks = u64::from(how == "beside one that breaks");
        assert_eq!((fleet.taken()[3], fleet.metric(NOT_SENT).await), (1, 3 - breaks), "{how}");
    }
}

#[tokio::test]
async fn after_go_away_calls_in_flight_finish_and_new_calls_use_a_new_connection() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].go_away_at_next_call();
    assert_eq!(caller.runner_of(&image).await, "0");

    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    let (gate, first) = fleet.hold(0, &image).await;
    fleet.runners[0].go_away();
    let second = caller.spawn(&image);
    fleet.runners[0].wait("the second call", |log| log.calls.len() == 2).await;
    gate.open();
    for call in [first, second] {
        assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "0");
    }
    assert_eq!(fleet.metric(NOT_SENT).await, 0);
}

#[tokio::test]
async fn a_call_is_sent_to_the_only_runner_again() {
    let breaks = Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR));
    for answer in [CUT, breaks] {
        let fleet = Fleet::of(1).await;
        fleet.runners[0].on(IMAGE, answer);
        let status = fleet.caller().await.try_runner_of(IMAGE).await.unwrap_err();
        assert!(status.message().starts_with(TWICE), "{status:?}");
        assert_eq!(fleet.taken(), [2]);
    }
    // A runner that refuses a stream has not run the call, so the router repeats the call until the
    // runner accepts it.
    let fleet = Fleet::of(1).await;
    fleet.runners[0].on(IMAGE, REFUSED);
    let call = fleet.caller().await.spawn(IMAGE);
    fleet.runners[0].wait("a second attempt, which is two streams", |log| log.calls.len() >= 3).await;
    fleet.runners[0].on(IMAGE, Answer::Echo);
    assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "0");
    fleet.runners[0].on(IMAGE, REFUSED);
    let answer = fleet.raw().await.call(&[("grpc-timeout", "20S")], framed(IMAGE, "package")).await;
    assert_eq!(answer.code(), Code::Unavailable);
    assert!(answer.message().starts_with("no ready function runner took the call"), "{}", answer.message());
}

#[tokio::test]
async fn a_call_waits_again_when_the_runner_it_waited_for_breaks_the_connection() {
    let mut fleet = Fleet::start(vec![FakeRunner::stopped("0").await], &[]).await;
    let gate = Gate::default();
    fleet.runners[0].on(IMAGE, Answer::Held(gate.clone(), Box::new(CUT)));
    let call = fleet.caller().await.spawn(IMAGE);
    fleet.wait_calls(1).await;
    fleet.runners[0].restart().await;
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    fleet.runners[0].on(IMAGE, Answer::Echo);
    // This exceeds `NO_RUNNER_WAIT`, which must not include the time that the call is on a runner.
    sleep(Duration::from_secs(6)).await;
    gate.open();
    assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "0");
}

#[tokio::test]
async fn a_shed_call_fails_at_once_when_no_other_runner_is_reachable() {
    let (mut fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].on(&image, shed(Code::ResourceExhausted, "0 is full"));
    fleet.runners[1].crash().await;
    fleet.wait_states(&[(1, "unreachable")]).await;
    let began = Instant::now();
    let status = caller.try_runner_of(&image).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "0 is full"));
    assert!(began.elapsed() < NO_RUNNER_WAIT, "the call must not wait for another runner");
}

#[tokio::test]
async fn all_calls_of_a_busy_runner_move_to_others_when_it_crashes() {
    // More calls of one runner than the retry budget allows in a burst, which is 1,000.
    const CALLS: usize = 3600;
    // The runners share one thread with all callers, so their answers to pings may be late.
    let mut fleet = Fleet::with(2, &["--keepalive-timeout=30s"]).await;
    let gate = Gate::default();
    fleet.runners.iter().for_each(|runner| runner.otherwise(gate.echo()));
    let caller = fleet.caller().await;
    let images: Vec<_> = (0..2).map(|owner| fleet.image(&[owner])).collect();
    let calls: Vec<_> = (0..CALLS).map(|call| caller.spawn(&images[call % 2])).collect();
    let all_arrived = async {
        while fleet.taken().iter().sum::<usize>() < CALLS {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon("all calls on the runners", all_arrived).await;
    assert!(fleet.runners[0].taken() > 1200, "{:?}", fleet.taken());
    fleet.runners[0].crash().await;
    gate.open();
    let failed: Vec<_> = join_all(calls).await.into_iter().filter_map(|call| call.unwrap().err()).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
}

#[tokio::test]
async fn the_calls_of_hung_runners_move_to_another() {
    let mut fleet = Fleet::of(3).await;
    let (small, large) = (fleet.image(&[0, 2]), fleet.image(&[1, 2]));
    let caller = fleet.caller().await;
    let (_gate, held) = fleet.hold(0, &small).await;
    fleet.runners[0].hang().await;
    fleet.runners[1].hang().await;
    let hung = Instant::now();
    // The first call is in flight when its runner hangs. The second is sent on a connection that
    // seems to work. The third has more bytes than fit into the socket.
    let late = caller.runner_of(&small);
    let large = caller.evaluate(&large, vec![b'x'; 5 * 1024 * 1024]);
    let (held, late, large) = soon("answers", Box::pin(async { tokio::join!(held, late, large) })).await;
    assert_eq!((held.unwrap().unwrap().as_str(), late.as_str()), ("2", "2"));
    assert_eq!(large.unwrap().log, "2");
    // Pings are sent every 2 s and time out after 2 s; the rest is margin for a slow machine.
    assert!(hung.elapsed() < Duration::from_secs(25), "{:?}", hung.elapsed());
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "healthy")]).await;
}

#[tokio::test]
async fn runners_that_hang_do_not_count_as_lost_connections_of_a_call() {
    let (mut fleet, image, caller) = Fleet::ordered(4, &PINGS).await;
    let gate = Gate::default();
    fleet.runners[..3].iter().for_each(|runner| runner.on(&image, gate.echo()));
    let call = caller.spawn(&image);
    // The worst case: one runner after the other gets the call and then hangs.
    for runner in &mut fleet.runners[..3] {
        runner.wait("the call", |log| log.calls.len() == 1).await;
        runner.hang().await;
    }
    assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "3");

    // A runner that hangs does not count as a lost connection. But after two lost connections, the
    // router does not send the call again.
    let (mut fleet, image, _) = Fleet::ordered(4, &PINGS).await;
    fleet.runners[1..3].iter().for_each(|runner| runner.on(&image, CUT));
    let (_gate, call) = fleet.hold(0, &image).await;
    fleet.runners[0].hang().await;
    let status = soon("an answer", call).await.unwrap().unwrap_err();
    assert!(status.message().starts_with(TWICE), "{}", status.message());
    assert_eq!(fleet.taken(), [1, 1, 1, 0]);
}

/// A fault such as the loss of a node may end several runners at almost the same time. Without a
/// pause, the router could send the call again to a runner that is about to end. After two lost
/// connections, the router would treat the call as the cause.
#[tokio::test]
async fn a_call_whose_connection_was_lost_is_sent_again_after_a_pause() {
    let (mut fleet, image, _) = Fleet::ordered(2, &[]).await;
    let (_gate, call) = fleet.hold(0, &image).await;
    let lost = Instant::now();
    fleet.runners[0].crash().await;
    assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "1");
    let again = fleet.runners[1].log().calls[0].at - lost;
    assert!(again >= Duration::from_millis(100), "{again:?}");
}

#[tokio::test]
async fn an_error_of_a_proxy_counts_as_a_lost_connection() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    let proxys = || Answer::Reply(Reply::status(Code::Unavailable, OF_A_PROXY));
    // Runners of older versions do not report their load. So until a runner has reported a load,
    // the router assumes that each answer comes from the runner, not from a proxy.
    fleet.runners[0].on(&image, proxys());
    assert_eq!(caller.try_runner_of(&image).await.unwrap_err().message(), OF_A_PROXY);

    let own = Reply::status(Code::Unavailable, "a function's own words").with_load();
    fleet.runners[0].on(&image, Answer::Reply(own));
    assert_eq!(caller.try_runner_of(&image).await.unwrap_err().message(), "a function's own words");
    fleet.runners[0].on(&image, proxys());
    assert_eq!(caller.runner_of(&image).await, "1");
    // The proxy may have forwarded the call, so this failure counts as a lost connection.
    fleet.runners[1].otherwise(Answer::Reply(Reply::status(Code::NotFound, "").with_load()));
    caller.try_runner_of(&image).await.unwrap_err();
    fleet.runners[1].on(&image, proxys());
    let status = caller.try_runner_of(&image).await.unwrap_err();
    assert!(status.message().starts_with(TWICE), "{}", status.message());
}
