//! Ejection of runners that report SERVING but fail their calls.

use h2::Reason;
use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, Gate, How, Point, Reply, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant};
use tonic::Code;

const RESET: Answer = Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR));
/// Consecutive failures after which a runner is ejected.
const ENOUGH: usize = 5;

#[tokio::test]
async fn a_runner_that_resets_streams_is_ejected_after_five_failures_and_no_call_fails() {
    let (fleet, image, caller) = Fleet::ordered(3, &[]).await;
    fleet.runners[0].otherwise(RESET);
    for _ in 0..20 {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    assert_eq!(fleet.taken(), [ENOUGH, 20, 0]);
    fleet.wait_states(&[(0, "ejected"), (1, "healthy"), (2, "healthy")]).await;
    fleet.wait_metric("porch_fn_router_runners{state=\"ejected\"}", 1).await;
}

/// With another runner, such a call fails too: a function may crash or be slow, and a registry may be
/// out of order. A runner without pods is ejected only when that lasts, see `router/src/health.rs`.
#[tokio::test]
async fn failures_that_a_function_or_a_registry_can_cause_never_eject_a_runner() {
    for refusal in [
        Reply::status(Code::Unavailable, "no"),
        Reply::status(Code::DeadlineExceeded, "too late"),
        Reply::shed(Code::Unavailable, "no pods"),
        Reply::shed(Code::ResourceExhausted, "full"),
    ] {
        let (fleet, image, caller) = Fleet::ordered(3, &[]).await;
        let images = [image, fleet.image(&[0, 2, 1])];
        fleet.runners[0].otherwise(Answer::Reply(refusal));
        for image in images.iter().cycle().take(4 * ENOUGH) {
            let _ = caller.evaluate(image, "package").await;
        }
        assert_eq!(fleet.taken()[0], 4 * ENOUGH);
        fleet.wait_all("healthy").await;
    }
}

/// The runner's calls hang, but its probes succeed: functions may be slow.
#[tokio::test]
async fn a_runner_whose_calls_exceed_their_deadlines_stays_healthy_while_it_answers_probes() {
    let (fleet, image, _) = Fleet::ordered(3, &[]).await;
    let images = [image, fleet.image(&[0, 2, 1])];
    for image in &images {
        fleet.runners[0].on(image, Gate::default().echo());
    }
    let raw = fleet.raw().await;
    let mut waiting = raw.begin(raw.head()).await;
    waiting.send(framed(&images[0], "package"), true);
    fleet.runners[0].wait("a probe", |log| log.probes >= 1).await;
    for image in images.iter().cycle().take(ENOUGH) {
        let answer = raw.call(&[("grpc-timeout", "1S")], framed(image, "package")).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded);
        let probes = fleet.runners[0].log().probes;
        fleet.runners[0].wait("one more probe", |log| log.probes > probes).await;
    }
    fleet.wait_all("healthy").await;
    waiting.cancel();
}

/// If all runners fail their calls, the cause is probably in the calls. So the router does not
/// eject more than half of the runners. If the others are unreachable, calls go to ejected runners.
#[tokio::test]
async fn at_most_half_of_the_runners_are_ejected() {
    let (mut fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners.iter().for_each(|runner| runner.otherwise(RESET));
    for _ in 0..4 * ENOUGH {
        assert_eq!(caller.evaluate(&image, "package").await.unwrap_err().code(), Code::Unavailable);
    }
    fleet.wait_states(&[(0, "ejected"), (1, "healthy")]).await;

    fleet.runners[0].otherwise(Answer::Echo);
    fleet.runners[1].crash().await;
    fleet.wait_states(&[(1, "unreachable")]).await;
    assert_eq!(caller.runner_of(&image).await, "0");
}

#[tokio::test]
async fn calls_on_a_stalled_runner_move_to_another_within_seconds() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].otherwise(Gate::default().echo());
    let started = Instant::now();
    for call in [(); 5].map(|()| caller.spawn(&image)) {
        assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "1");
    }
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(25), "{waited:?}");
    fleet.wait_states(&[(0, "ejected"), (1, "healthy")]).await;
    assert_eq!(caller.runner_of(&image).await, "1");
    fleet.runners[0].wait("the cancelled calls", |log| log.abandoned >= 5).await;
}

#[tokio::test]
async fn a_slow_function_does_not_eject_its_runner() {
    let (fleet, image, _) = Fleet::ordered(2, &[]).await;
    let (gate, call) = fleet.hold(0, &image).await;
    // After two probes, the answer of the first has been processed.
    fleet.runners[0].wait("two probes", |log| log.probes >= 2).await;
    fleet.wait_all("healthy").await;
    gate.open();
    assert_eq!(soon("the answer", call).await.unwrap().unwrap(), "0");
}

#[tokio::test]
#[ignore = "takes 35 s; tests/run nightly scaling runs it"]
async fn an_ejected_runner_that_answers_a_probe_is_healthy_again() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].otherwise(RESET);
    for _ in 0..ENOUGH {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    fleet.wait_states(&[(0, "ejected")]).await;
    fleet.runners[0].otherwise(Answer::Echo);
    fleet.runners[0].wait("a probe", |log| log.probes > 0).await;
    fleet.wait_all("healthy").await;
    assert_eq!(caller.runner_of(&image).await, "0");
}
