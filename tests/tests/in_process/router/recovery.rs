//! What is lost at once: several runners, all calls of one, and what stands between router and runners.

use futures_util::future::join_all;
use h2::Reason;
use porch_fn_tests::fake_runner::{Answer, Gate, How, Point, Reply, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant};
use tonic::Code;

/// What Envoy answers for a server that it cannot reach.
const OF_A_PROXY: &str = "upstream connect error or disconnect/reset before headers. reset reason: connection \
                          failure, transport failure reason: delayed connect error: 10.1.2.3:9445";

/// Pings so often that a test need not wait for them.
const PINGS: [&str; 2] = ["--keepalive-time=300ms", "--keepalive-timeout=300ms"];

#[tokio::test]
async fn three_runners_that_are_lost_in_silence_cost_no_call() {
    let mut fleet = Fleet::with(4, &PINGS).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    let gate = Gate::new();
    for runner in &fleet.runners[..3] {
        runner.on(&image, gate.echo());
    }
    let caller = fleet.caller().await;
    let call = tokio::spawn({
        let image = image.clone();
        async move { caller.runner_of(&image).await }
    });
    // One after the other: the worst case of a loss that is noticed connection by connection.
    for runner in &mut fleet.runners[..3] {
        runner.wait("the call", |log| log.calls.len() == 1).await;
        runner.hang().await;
    }
    assert_eq!(soon("an answer", call).await.unwrap(), "3");
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "unreachable"), (3, "well")]).await;
}

/// What killed the first may kill others a moment later, and then the call would count as what did
/// it.
#[tokio::test]
async fn a_call_whose_connection_was_lost_is_sent_again_a_moment_later() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    let caller = fleet.caller().await;
    let call = tokio::spawn(async move { caller.runner_of(&image).await });
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    let lost = Instant::now();
    fleet.runners[0].crash().await;
    assert_eq!(soon("an answer", call).await.unwrap(), "1");
    let again = fleet.runners[1].log().calls[0].at;
    assert!(again - lost >= Duration::from_millis(100), "{:?}", again - lost);
}

/// A hop that dies in silence says nothing of the call, but a call does not wait for one after the other.
#[tokio::test]
async fn a_call_that_breaks_two_runners_ends_also_after_hops_that_died_in_silence() {
    let mut fleet = Fleet::with(4, &PINGS).await;
    let image = fleet.image(&[0, 1, 2, 3]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    for runner in &fleet.runners[1..3] {
        runner.on(&image, Answer::Break(Point::Start, How::Cut));
    }
    let caller = fleet.caller().await;
    let call = tokio::spawn(async move { caller.evaluate(&image, "package").await });
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;
    fleet.runners[0].hang().await;
    let status = soon("an answer", call).await.unwrap().unwrap_err();
    assert!(status.message().starts_with("two function runners broke off"), "{}", status.message());
    assert_eq!(fleet.taken(), [1, 1, 1, 0]);
}

#[tokio::test]
async fn all_calls_of_a_busy_runner_that_dies_move_on() {
    const CALLS: usize = 6000;
    let mut fleet = Fleet::of(3).await;
    let gate = Gate::new();
    for runner in &fleet.runners {
        runner.otherwise(gate.echo());
    }
    let caller = fleet.caller().await;
    let images: Vec<_> = (0..3).map(|owner| fleet.image(&[owner])).collect();
    let calls = (0..CALLS).map(|call| {
        let (caller, image) = (caller.clone(), images[call % 3].clone());
        tokio::spawn(async move { caller.evaluate(&image, "p").await.map(drop) })
    });
    let calls: Vec<_> = calls.collect();
    for runner in &fleet.runners {
        runner.wait("its calls", |log| log.calls.len() > CALLS / 4).await;
    }
    let all = |fleet: &Fleet| fleet.taken().iter().sum::<usize>();
    while all(&fleet) < CALLS {
        tokio::task::yield_now().await;
    }
    fleet.runners[0].crash().await;
    gate.open();
    let failed: Vec<_> = join_all(calls).await.into_iter().filter_map(|call| call.unwrap().err()).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
}

#[tokio::test]
async fn an_answer_of_a_proxy_in_between_is_no_answer_of_a_runner() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let caller = fleet.caller().await;
    let proxys = || Answer::Reply(Reply::status(Code::Unavailable, OF_A_PROXY));
    // It may be a runner of an older version, which marks nothing.
    fleet.runners[0].on(&image, proxys());
    let status = caller.evaluate(&image, "package").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, OF_A_PROXY));

    let answer = Reply::status(Code::Unavailable, "a function's own words").marked();
    fleet.runners[0].on(&image, Answer::Reply(answer));
    let status = caller.evaluate(&image, "package").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "a function's own words"));
    fleet.runners[0].on(&image, proxys());
    assert_eq!(caller.runner_of(&image).await, "1");
    // Whoever stands in between may have let the call through: it is not free.
    let answer = Reply::status(Code::NotFound, "").marked();
    fleet.runners[1].otherwise(Answer::Reply(answer));
    let _ = caller.evaluate(&image, "package").await;
    fleet.runners[1].on(&image, proxys());
    let status = caller.evaluate(&image, "package").await.unwrap_err();
    assert!(status.message().starts_with("two function runners broke off"), "{}", status.message());
}

#[tokio::test]
async fn a_health_stream_that_a_proxy_ends_is_opened_again() {
    let fleet = Fleet::with(1, &[]).await;
    for ended in 1..3 {
        // One that has lived for a while.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        fleet.runners[0].end_watches();
        fleet.runners[0].wait("another watch", |log| log.watches == ended + 1).await;
        fleet.wait_all("well").await;
    }
}

#[tokio::test]
async fn a_runner_that_ends_each_health_stream_at_once_is_not_asked_without_pause() {
    let fleet = Fleet::with(1, &[]).await;
    fleet.runners[0].end_watches();
    fleet.wait_all("held down").await;
    assert!(fleet.runners[0].log().watches <= 4);
}

#[tokio::test]
async fn a_call_that_broke_after_a_refusal_says_so() {
    let shed = || Answer::Reply(Reply::shed(Code::ResourceExhausted, "full"));
    let reset = || Answer::Break(Point::Headers, How::Reset(Reason::INTERNAL_ERROR));
    // Both runners after the refusal break.
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].on(&image, shed());
    fleet.runners[1].on(&image, reset());
    fleet.runners[2].on(&image, reset());
    let status = fleet.caller().await.evaluate(&image, "package").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("two function runners broke off"), "{}", status.message());
    // One breaks, and there is no other.
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].on(&image, shed());
    fleet.runners[1].on(&image, reset());
    let started = Instant::now();
    let status = fleet.caller().await.evaluate(&image, "package").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().starts_with("a function runner broke off during this call"),
        "{}",
        status.message()
    );
    assert!(started.elapsed() < super::NO_RUNNER_WAIT);
    // One breaks, and the next refuses, too.
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].on(&image, shed());
    fleet.runners[1].on(&image, reset());
    fleet.runners[2].on(&image, shed());
    let status = fleet.caller().await.evaluate(&image, "package").await.unwrap_err();
    assert!(
        status.message().starts_with("a function runner broke off during this call"),
        "{}",
        status.message()
    );
}
