//! A runner that reports SERVING and fails its calls is ejected, and no call waits for it.

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
async fn a_runner_that_resets_its_streams_is_ejected_after_five_and_no_call_fails() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].otherwise(RESET);
    let caller = fleet.caller().await;
    for _ in 0..20 {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    assert_eq!(fleet.taken(), [ENOUGH, 20, 0]);
    fleet.wait_states(&[(0, "ejected"), (1, "healthy"), (2, "healthy")]).await;
    fleet.wait_metric("porch_fn_router_runners{state=\"ejected\"}", 1).await;
}

#[tokio::test]
async fn failures_that_a_function_can_cause_are_the_runners_only_when_several_images_meet_them() {
    let refusals = [
        Reply::status(Code::Unavailable, "no"),
        Reply::status(Code::DeadlineExceeded, "too late"),
        // Another runner takes the call, but the pods of this runner cannot be reached.
        Reply::shed(Code::Unavailable, "no pods"),
    ];
    for refusal in refusals {
        let fleet = Fleet::of(3).await;
        let (first, second) = (fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1]));
        fleet.runners[0].otherwise(Answer::Reply(refusal));
        let caller = fleet.caller().await;
        for _ in 0..3 * ENOUGH {
            let _ = caller.evaluate(&first, "package").await;
        }
        fleet.wait_all("healthy").await;
        let _ = caller.evaluate(&second, "package").await;
        fleet.wait_states(&[(0, "ejected"), (1, "healthy"), (2, "healthy")]).await;
        assert_eq!(fleet.taken()[0], 3 * ENOUGH + 1);
        assert_eq!(caller.runner_of(&first).await, "1");
        assert_eq!(caller.runner_of(&second).await, "2");
    }
}

#[tokio::test]
async fn a_runner_that_has_too_much_to_do_is_healthy() {
    let fleet = Fleet::of(3).await;
    let (first, second) = (fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1]));
    fleet.runners[0].otherwise(Answer::Reply(Reply::shed(Code::ResourceExhausted, "full")));
    let caller = fleet.caller().await;
    for _ in 0..2 * ENOUGH {
        assert_eq!(caller.runner_of(&first).await, "1");
        assert_eq!(caller.runner_of(&second).await, "2");
    }
    fleet.wait_all("healthy").await;
}

/// The runner's calls hang, but its probes succeed.
#[tokio::test]
async fn a_runner_whose_calls_run_into_their_deadlines_is_ejected_though_it_answers_probes() {
    let fleet = Fleet::of(3).await;
    let images = [fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1])];
    for image in &images {
        fleet.runners[0].on(image, Gate::new().echo());
    }
    let caller = fleet.caller().await;
    let raw = fleet.raw().await;
    let mut waiting = raw.begin(raw.head()).await;
    waiting.send(framed(&images[0], "package"), true);
    fleet.runners[0].wait("a probe", |log| log.tries >= 1).await;
    for image in images.iter().cycle().take(ENOUGH) {
        let answer = raw.call(&[("grpc-timeout", "1S")], framed(image, "package")).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded);
        let tries = fleet.runners[0].log().tries;
        fleet.runners[0].wait("one more probe", |log| log.tries > tries).await;
    }
    fleet.wait_states(&[(0, "ejected"), (1, "healthy"), (2, "healthy")]).await;
    assert_eq!(caller.runner_of(&images[0]).await, "1");
    waiting.cancel();
}

/// If all runners seem to fail, the calls are the cause. At least half of the runners stay; ejected
/// runners are used when these are gone.
#[tokio::test]
async fn at_most_half_of_the_runners_are_ejected_for_calls_that_fail() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners.iter().for_each(|runner| runner.otherwise(RESET));
    let caller = fleet.caller().await;
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
async fn calls_that_a_stalled_runner_holds_move_on_within_seconds() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].otherwise(Gate::new().echo());
    let (started, caller) = (Instant::now(), fleet.caller().await);
    for call in [(); 5].map(|()| caller.spawn(&image)) {
        assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "1");
    }
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(25), "{waited:?}");
    fleet.wait_states(&[(0, "ejected"), (1, "healthy")]).await;
    assert_eq!(caller.runner_of(&image).await, "1");
    fleet.runners[0].wait("the calls given up", |log| log.abandoned >= 5).await;
}

#[tokio::test]
async fn a_slow_function_is_no_stalled_runner() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    let call = fleet.caller().await.spawn(&image);
    // After two probes, the answer of the first has been processed.
    fleet.runners[0].wait("two probes", |log| log.tries >= 2).await;
    fleet.wait_all("healthy").await;
    gate.open();
    assert_eq!(soon("the answer", call).await.unwrap().unwrap(), "0");
}

#[tokio::test]
#[ignore = "takes 35 s; tests/run nightly scaling runs it"]
async fn a_runner_that_answers_a_probe_comes_back() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].otherwise(RESET);
    let caller = fleet.caller().await;
    for _ in 0..ENOUGH {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    fleet.wait_states(&[(0, "ejected")]).await;
    fleet.runners[0].otherwise(Answer::Echo);
    // This takes longer than the default patience of these tests.
    let probed = async {
        while fleet.runners[0].log().tries == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), probed).await.expect("a probe");
    fleet.wait_all("healthy").await;
    assert_eq!(caller.runner_of(&image).await, "0");
}
