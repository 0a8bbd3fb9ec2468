//! A runner whose health is good and whose calls are not: it is passed over, and nobody waits for it.

use h2::Reason;
use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, Gate, How, Point, Reply, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant};
use tonic::Code;

const RESET: Answer = Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR));
/// Failures in a row after which a runner is passed over.
const ENOUGH: usize = 5;

#[tokio::test]
async fn a_runner_that_resets_its_streams_is_passed_over_after_five_and_no_call_fails() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].otherwise(RESET);
    let caller = fleet.caller().await;
    for _ in 0..20 {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    assert_eq!(fleet.taken(), [ENOUGH, 20, 0]);
    fleet.wait_states(&[(0, "passed over"), (1, "well"), (2, "well")]).await;
    fleet.wait_metric("porch_fn_router_shards{state=\"passed over\"}", 1).await;
}

#[tokio::test]
async fn an_answer_in_between_begins_the_count_anew() {
    let fleet = Fleet::of(3).await;
    let (bad, good) = (fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1]));
    fleet.runners[0].on(&bad, RESET);
    let caller = fleet.caller().await;
    for _ in 0..3 {
        for _ in 0..ENOUGH - 1 {
            assert_eq!(caller.runner_of(&bad).await, "1");
        }
        assert_eq!(caller.runner_of(&good).await, "0");
    }
    fleet.wait_all("well").await;
}

#[tokio::test]
async fn failures_that_a_function_can_cause_are_the_runners_only_when_several_images_meet_them() {
    let refusals = [
        Reply::status(Code::Unavailable, "no"),
        Reply::status(Code::DeadlineExceeded, "too late"),
        // Another takes it, and yet this one's pods cannot be reached.
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
        fleet.wait_all("well").await;
        let _ = caller.evaluate(&second, "package").await;
        fleet.wait_states(&[(0, "passed over"), (1, "well"), (2, "well")]).await;
        assert_eq!(fleet.taken()[0], 3 * ENOUGH + 1);
        assert_eq!(caller.runner_of(&first).await, "1");
        assert_eq!(caller.runner_of(&second).await, "2");
    }
}

#[tokio::test]
async fn a_runner_that_has_too_much_to_do_is_well() {
    let fleet = Fleet::of(3).await;
    let (first, second) = (fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1]));
    fleet.runners[0].otherwise(Answer::Reply(Reply::shed(Code::ResourceExhausted, "full")));
    let caller = fleet.caller().await;
    for _ in 0..2 * ENOUGH {
        assert_eq!(caller.runner_of(&first).await, "1");
        assert_eq!(caller.runner_of(&second).await, "2");
    }
    fleet.wait_all("well").await;
}

/// Its calls hang, and what a router tries it with does not.
#[tokio::test]
async fn a_runner_whose_calls_run_into_their_deadlines_is_passed_over_though_it_answers_tries() {
    let fleet = Fleet::of(3).await;
    let images = [fleet.image(&[0, 1, 2]), fleet.image(&[0, 2, 1])];
    for image in &images {
        fleet.runners[0].on(image, Gate::new().echo());
    }
    let caller = fleet.caller().await;
    let raw = fleet.raw().await;
    let mut waiting = raw.begin(raw.head()).await;
    waiting.send(framed(&images[0], "package"), true);
    fleet.runners[0].wait("a try", |log| log.tries >= 1).await;
    for image in images.iter().cycle().take(ENOUGH) {
        let answer = raw.call(&[("grpc-timeout", "1S")], framed(image, "package")).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded);
        let tries = fleet.runners[0].log().tries;
        fleet.runners[0].wait("one more try", |log| log.tries > tries).await;
    }
    fleet.wait_states(&[(0, "passed over"), (1, "well"), (2, "well")]).await;
    assert_eq!(caller.runner_of(&images[0]).await, "1");
    waiting.cancel();
}

/// When all seem to fail it is the calls: half of the runners stay, and the others are used when these are gone.
#[tokio::test]
async fn at_most_half_of_the_runners_are_passed_over_for_calls_that_fail() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners.iter().for_each(|runner| runner.otherwise(RESET));
    let caller = fleet.caller().await;
    for _ in 0..4 * ENOUGH {
        assert_eq!(caller.evaluate(&image, "package").await.unwrap_err().code(), Code::Unavailable);
    }
    fleet.wait_states(&[(0, "passed over"), (1, "well")]).await;

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
    let started = Instant::now();
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (caller, image) = (fleet.caller(), image.clone());
            async move { caller.await.runner_of(&image).await }
        })
        .collect();
    let answers = soon("answers", futures_util::future::join_all(calls)).await;
    assert_eq!(answers, ["1"; 5]);
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(25), "{waited:?}");
    fleet.wait_states(&[(0, "passed over"), (1, "well")]).await;
    assert_eq!(fleet.caller().await.runner_of(&image).await, "1");
    fleet.runners[0].wait("the calls given up", |log| log.abandoned >= 5).await;
}

#[tokio::test]
async fn a_slow_function_is_no_stalled_runner() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    let caller = fleet.caller().await;
    let call = tokio::spawn({
        let (caller, image) = (caller.clone(), image.clone());
        async move { caller.runner_of(&image).await }
    });
    // Two, so that the first one's answer has been seen.
    fleet.runners[0].wait("two tries", |log| log.tries >= 2).await;
    fleet.wait_all("well").await;
    gate.open();
    assert_eq!(soon("the answer", call).await.unwrap(), "0");
}

#[tokio::test]
#[ignore = "takes 35 s; tests/run nightly scaling runs it"]
async fn a_runner_that_answers_a_try_comes_back() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].otherwise(RESET);
    let caller = fleet.caller().await;
    for _ in 0..ENOUGH {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    fleet.wait_states(&[(0, "passed over")]).await;
    fleet.runners[0].otherwise(Answer::Echo);
    let tried = async {
        fleet.runners[0].wait("a try", |log| log.tries >= 1).await;
    };
    // Longer than this file's patience.
    tokio::time::timeout(Duration::from_secs(40), async {
        while fleet.runners[0].log().tries == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tried.await;
    })
    .await
    .expect("a try");
    fleet.wait_all("well").await;
    assert_eq!(caller.runner_of(&image).await, "0");
}
