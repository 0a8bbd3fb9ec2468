//! Which runners the router picks, what it says of them, and what happens when there is none.

use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, FakeRunner, Gate, Reply, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::Instant;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::NO_RUNNER_WAIT;

const NO_RUNNER: &str = "no function runner is ready: 0 of 3 runners ready: 2 unreachable, 1 draining; see the \
                         router's /shards page and --runners";

/// Two closed ports and a runner that drains.
async fn nobody_ready() -> Fleet {
    let runners =
        vec![FakeRunner::stopped("0").await, FakeRunner::stopped("1").await, FakeRunner::start("2").await];
    runners[2].set_serving(false);
    let fleet = Fleet::start(runners, &[]).await;
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "draining")]).await;
    fleet
}

async fn check(fleet: &Fleet, name: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(fleet.caller().await.channel());
    let request = HealthCheckRequest { service: name.to_owned() };
    let answer = soon("a health answer", client.check(request)).await;
    answer.map(|answer| answer.get_ref().status()).map_err(|status| status.code())
}

async fn watch(fleet: &Fleet, name: &str) -> Streaming<HealthCheckResponse> {
    let mut client = HealthClient::new(fleet.caller().await.channel());
    let request = HealthCheckRequest { service: name.to_owned() };
    soon("a health stream", client.watch(request)).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    soon("a change of health", stream.message()).await.unwrap().expect("an open stream").status()
}

/// A watch that is opened while the router starts may see it start.
async fn until_serving(stream: &mut Streaming<HealthCheckResponse>) {
    while next(stream).await != ServingStatus::Serving {}
}

#[tokio::test]
async fn without_a_runner_a_call_waits_five_seconds_and_says_what_is_wrong_with_them() {
    let fleet = nobody_ready().await;
    let caller = fleet.caller().await;
    let started = Instant::now();
    let status = caller.evaluate("fn:v1", "package").await.unwrap_err();
    let waited = started.elapsed();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, NO_RUNNER));
    assert!(waited >= NO_RUNNER_WAIT && waited < 5 * NO_RUNNER_WAIT, "{waited:?}");
    assert_eq!(fleet.taken(), [0, 0, 0]);
}

#[tokio::test]
async fn without_a_runner_a_short_deadline_ends_the_wait_and_the_caller_still_reads_why() {
    let fleet = nobody_ready().await;
    let raw = fleet.raw().await;
    for timeout in ["1n", "10m", "500m"] {
        let started = Instant::now();
        let answer = raw.call(&[("grpc-timeout", timeout)], framed("fn:v1", "package")).await;
        if timeout == "500m" {
            assert_eq!((answer.code(), answer.message().as_str()), (Code::Unavailable, NO_RUNNER));
        } else {
            // Too short for certainty which of the two clocks is first.
            assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&answer.code()), "{timeout}");
        }
        assert!(started.elapsed() < NO_RUNNER_WAIT, "{timeout}");
    }
}

#[tokio::test]
async fn a_runner_that_comes_up_meanwhile_takes_the_waiting_calls() {
    let mut fleet = nobody_ready().await;
    let caller = fleet.caller().await;
    let calls: Vec<_> = (0..5)
        .map(|number| {
            let caller = caller.clone();
            tokio::spawn(async move { caller.runner_of(&format!("fn-{number}:v1")).await })
        })
        .collect();
    let all_in = async {
        while fleet.shards().await.images.iter().map(|image| image.in_flight).sum::<usize>() < calls.len() {
            tokio::task::yield_now().await;
        }
    };
    soon("the calls in the router", all_in).await;
    fleet.runners[1].restart().await;
    for call in calls {
        assert_eq!(soon("an answer", call).await.unwrap(), "1");
    }
}

#[tokio::test]
async fn a_draining_runner_finishes_its_calls_and_gets_no_new_ones() {
    let fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let gate = Gate::new();
    fleet.runners[0].on(&image, gate.echo());
    let caller = fleet.caller().await;
    let held = tokio::spawn({
        let (caller, image) = (caller.clone(), image.clone());
        async move { caller.runner_of(&image).await }
    });
    fleet.runners[0].wait("the call", |log| log.calls.len() == 1).await;

    fleet.runners[0].set_serving(false);
    fleet.wait_states(&[(0, "draining"), (1, "well")]).await;
    for _ in 0..5 {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    gate.open();
    assert_eq!(soon("the held call", held).await.unwrap(), "0");
    assert_eq!(fleet.taken(), [1, 5]);
}

#[tokio::test]
async fn a_runner_that_returns_is_held_down_and_used_when_nobody_else_is_left() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    let caller = fleet.caller().await;
    fleet.runners[0].crash().await;
    fleet.wait_states(&[(0, "unreachable")]).await;
    assert_eq!(caller.runner_of(&image).await, "1");

    fleet.runners[0].restart().await;
    fleet.wait_states(&[(0, "held down"), (1, "well")]).await;
    assert_eq!(caller.runner_of(&image).await, "1");

    fleet.runners[1].crash().await;
    fleet.wait_states(&[(1, "unreachable")]).await;
    assert_eq!(caller.runner_of(&image).await, "0");
}

#[tokio::test]
async fn a_held_down_runner_is_used_by_the_very_call_that_finds_the_last_other_one_gone() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].crash().await;
    fleet.wait_states(&[(0, "unreachable")]).await;
    fleet.runners[0].restart().await;
    fleet.wait_states(&[(0, "held down")]).await;
    fleet.runners[1].close_port().await;
    fleet.runners[1].go_away();
    let caller = fleet.caller().await;
    let started = Instant::now();
    assert_eq!(caller.runner_of(&image).await, "0");
    assert!(started.elapsed() < NO_RUNNER_WAIT, "it is not waited for another runner");
}

#[tokio::test]
async fn a_runner_that_a_call_could_not_reach_returns_though_its_old_health_stream_never_ended() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    fleet.runners[0].close_port().await;
    fleet.runners[0].go_away();
    assert_eq!(fleet.caller().await.runner_of(&image).await, "1");
    fleet.wait_states(&[(0, "unreachable")]).await;
    fleet.runners[0].restart().await;
    fleet.wait_states(&[(0, "held down")]).await;
}

/// Crashes these and starts them again, which holds them down.
async fn hold_down(fleet: &mut Fleet, runners: &[usize]) {
    for &runner in runners {
        fleet.runners[runner].crash().await;
    }
    let states = |state| runners.iter().map(|&runner| (runner, state)).collect::<Vec<_>>();
    fleet.wait_states(&states("unreachable")).await;
    for &runner in runners {
        fleet.runners[runner].restart().await;
    }
    fleet.wait_states(&states("held down")).await;
}

#[tokio::test]
async fn most_of_a_fleet_that_is_back_serves_at_once() {
    let mut fleet = Fleet::of(3).await;
    hold_down(&mut fleet, &[0, 1]).await;
    fleet.wait_states(&[(2, "well")]).await;
    let caller = fleet.caller().await;
    for owner in 0..3 {
        let order = [owner, (owner + 1) % 3, (owner + 2) % 3];
        assert_eq!(caller.runner_of(&fleet.image(&order)).await, owner.to_string());
    }
}

#[tokio::test]
async fn one_that_flaps_stands_back_until_a_healthy_one_refuses() {
    let mut fleet = Fleet::of(2).await;
    let image = fleet.image(&[0, 1]);
    hold_down(&mut fleet, &[0]).await;
    let caller = fleet.caller().await;
    assert_eq!(caller.runner_of(&image).await, "1");
    fleet.runners[1].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "busy")));
    assert_eq!(caller.runner_of(&image).await, "0");
    // Once more, and no further.
    fleet.runners[0].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "busy, too")));
    let status = caller.evaluate(&image, "package").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "busy, too"));
}

#[tokio::test]
async fn a_runner_without_watch_is_asked_by_check() {
    let runner = FakeRunner::start("0").await;
    runner.without_watch();
    let fleet = Fleet::start(vec![runner], &[]).await;
    fleet.wait_all("well").await;
    assert_eq!(fleet.caller().await.runner_of("fn:v1").await, "0");
    fleet.runners[0].set_serving(false);
    fleet.wait_all("draining").await;
    fleet.runners[0].set_serving(true);
    fleet.wait_all("held down").await;
    assert!(fleet.runners[0].log().checks >= 3);
}

#[tokio::test]
async fn a_runner_that_takes_connections_and_never_answers_is_unreachable() {
    let mut runner = FakeRunner::start("0").await;
    runner.hang().await;
    let fleet = Fleet::start(vec![runner], &[]).await;
    fleet.wait_all("unreachable").await;
}

#[tokio::test]
async fn the_routers_health_names_each_shard() {
    let mut fleet = Fleet::of(2).await;
    let name = |index: usize| format!("shard/{}", fleet.runners[index].address());
    let (drained, crashed) = (name(0), name(1));
    let mut seen = [watch(&fleet, &drained).await, watch(&fleet, &crashed).await];
    let mut unknown = watch(&fleet, "shard/127.0.0.1:1").await;
    let mut server = watch(&fleet, "").await;
    until_serving(&mut seen[0]).await;
    until_serving(&mut seen[1]).await;
    until_serving(&mut server).await;
    assert_eq!(next(&mut unknown).await, ServingStatus::ServiceUnknown);
    assert_eq!(check(&fleet, &drained).await, Ok(ServingStatus::Serving));
    assert_eq!(check(&fleet, "shard/127.0.0.1:1").await, Err(Code::NotFound));
    assert_eq!(check(&fleet, "evaluator.FunctionEvaluator").await, Err(Code::NotFound));

    fleet.runners[0].set_serving(false);
    assert_eq!(next(&mut seen[0]).await, ServingStatus::NotServing);
    fleet.runners[1].crash().await;
    assert_eq!(next(&mut seen[1]).await, ServingStatus::NotServing);
    fleet.runners[0].set_serving(true);
    assert_eq!(next(&mut seen[0]).await, ServingStatus::Serving);
    assert_eq!(check(&fleet, &crashed).await, Ok(ServingStatus::NotServing));

    // Neither of them heard anything, and neither of them ended.
    for stream in [&mut unknown, &mut server] {
        assert!(futures_util::FutureExt::now_or_never(stream.message()).is_none());
    }
}

#[tokio::test]
async fn the_routers_own_health_does_not_fall_with_its_runners() {
    let fleet = nobody_ready().await;
    until_serving(&mut watch(&fleet, "").await).await;
    assert_eq!(check(&fleet, "").await, Ok(ServingStatus::Serving));
    assert_eq!(fleet.get("/readyz").await.0, 200);
    assert_eq!(fleet.get("/healthz").await.0, 200);
    for (state, count) in [("well", 0), ("unreachable", 2), ("draining", 1)] {
        fleet.wait_metric(&format!("porch_fn_router_shards{{state=\"{state}\"}}"), count).await;
    }
}
