//! Which runners the router chooses, how it reports their health, and what happens when none is
//! available.

use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, FakeRunner, Reply, soon};
use porch_fn_tests::fleet::Fleet;
use tokio::time::{Duration, Instant, sleep};
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::NO_RUNNER_WAIT;

const NO_RUNNER: &str = "no function runner is ready: 0 of 3 runners ready: 2 unreachable, 1 draining; see the \
                         router's /shards page and --runners";

async fn check(fleet: &Fleet, name: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(fleet.caller().await.channel);
    let answer = soon("a health answer", client.check(HealthCheckRequest { service: name.to_owned() })).await;
    answer.map(|answer| answer.get_ref().status()).map_err(|status| status.code())
}

pub(super) async fn watch(fleet: &Fleet, name: &str) -> Streaming<HealthCheckResponse> {
    let mut client = HealthClient::new(fleet.caller().await.channel);
    let request = HealthCheckRequest { service: name.to_owned() };
    soon("a health stream", client.watch(request)).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    soon("a change of health", stream.message()).await.unwrap().expect("an open stream").status()
}

/// Waits until the watch reports SERVING. A watch may first report that the router is starting.
pub(super) async fn wait_serving(stream: &mut Streaming<HealthCheckResponse>) {
    while next(stream).await != ServingStatus::Serving {}
}

#[tokio::test]
async fn without_a_runner_a_call_waits_five_seconds_and_its_error_names_the_cause() {
    // Two closed ports, and a runner that drains.
    let runners =
        vec![FakeRunner::stopped("0").await, FakeRunner::stopped("1").await, FakeRunner::start("2").await];
    runners[2].set_serving(false);
    let mut fleet = Fleet::start(runners, &[]).await;
    fleet.wait_states(&[(0, "unreachable"), (1, "unreachable"), (2, "draining")]).await;
    let raw = fleet.raw().await;
    // With a very short deadline, either the client's or the router's timer may fire first.
    for (timeout, certain) in [("1n", false), ("10m", false), ("500m", true), ("20S", true)] {
        let started = Instant::now();
        let answer = raw.call(&[("grpc-timeout", timeout)], framed("fn:v1", "package")).await;
        let waited = started.elapsed();
        if certain {
            assert_eq!((answer.code(), answer.message().as_str()), (Code::Unavailable, NO_RUNNER));
        } else {
            assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&answer.code()), "{timeout}");
        }
        if timeout == "20S" {
            assert!((NO_RUNNER_WAIT..Duration::from_secs(19)).contains(&waited), "{waited:?}");
        } else {
            assert!(waited < NO_RUNNER_WAIT, "{timeout}: {waited:?}");
        }
    }
    assert_eq!(fleet.taken(), [0, 0, 0]);

    // The router stays healthy even when its runners are not.
    wait_serving(&mut watch(&fleet, "").await).await;
    assert_eq!(check(&fleet, "").await, Ok(ServingStatus::Serving));
    assert_eq!((fleet.get("/readyz").await.0, fleet.get("/healthz").await.0), (200, 200));
    for (state, count) in [("healthy", 0), ("unreachable", 2), ("draining", 1)] {
        fleet.wait_metric(&format!("porch_fn_router_runners{{state=\"{state}\"}}"), count).await;
    }

    // Waiting calls go to a runner that becomes ready.
    let caller = fleet.caller().await;
    let calls: Vec<_> = (0..5).map(|number| caller.spawn(&format!("fn-{number}:v1"))).collect();
    fleet.wait_calls(5).await;
    fleet.runners[1].restart().await;
    for call in calls {
        assert_eq!(soon("an answer", call).await.unwrap().unwrap(), "1");
    }
}

#[tokio::test]
async fn a_draining_runner_finishes_its_calls_and_gets_no_new_ones() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    let (gate, held) = fleet.hold(0, &image).await;
    fleet.runners[0].set_serving(false);
    fleet.wait_states(&[(0, "draining"), (1, "healthy")]).await;
    for _ in 0..5 {
        assert_eq!(caller.runner_of(&image).await, "1");
    }
    gate.open();
    assert_eq!(soon("the held call", held).await.unwrap().unwrap(), "0");
    assert_eq!(fleet.taken(), [1, 5]);
}

#[tokio::test]
async fn a_runner_in_cooldown_gets_calls_only_when_the_healthy_one_refuses_or_is_unreachable() {
    let (mut fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].crash().await;
    fleet.wait_states(&[(0, "unreachable")]).await;
    fleet.runners[0].restart().await;
    fleet.wait_states(&[(0, "cooling_down")]).await;
    assert_eq!(caller.runner_of(&image).await, "1");
    let busy = |text| Answer::Reply(Reply::shed(Code::ResourceExhausted, text));
    fleet.runners[1].on(&image, busy("busy"));
    assert_eq!(caller.runner_of(&image).await, "0");
    // The call moves only once: the second refusal is final.
    fleet.runners[0].on(&image, busy("busy, too"));
    let status = caller.try_runner_of(&image).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "busy, too"));
    fleet.runners[0].on(&image, Answer::Echo);
    // During this call the router detects that the other runner is unreachable.
    fleet.runners[1].close_port().await;
    fleet.runners[1].go_away();
    let started = Instant::now();
    assert_eq!(caller.runner_of(&image).await, "0");
    assert!(started.elapsed() < NO_RUNNER_WAIT, "the call must not wait for another runner");
    fleet.wait_states(&[(1, "unreachable")]).await;
    assert_eq!(caller.runner_of(&image).await, "0");
    // The runner's old health stream has never ended. The router must open a new one to notice the
    // restart.
    fleet.runners[1].restart().await;
    fleet.wait_states(&[(1, "cooling_down")]).await;
}

#[tokio::test]
async fn a_runner_without_watch_is_polled_with_check() {
    let runner = FakeRunner::start("0").await;
    runner.without_watch();
    let fleet = Fleet::start(vec![runner], &[]).await;
    for (serving, state) in [(true, "healthy"), (false, "draining"), (true, "cooling_down")] {
        fleet.runners[0].set_serving(serving);
        fleet.wait_all(state).await;
    }
    assert!(fleet.runners[0].log().checks >= 3);
}

#[tokio::test]
async fn a_health_stream_that_a_proxy_ends_is_opened_again() {
    let fleet = Fleet::of(1).await;
    for ended in 1..3 {
        // A health stream that ends after some time is not a failure.
        sleep(Duration::from_millis(1100)).await;
        fleet.runners[0].end_watches();
        fleet.runners[0].wait("another watch", |log| log.watches == ended + 1).await;
        fleet.wait_all("healthy").await;
    }
    // A health stream that ends at once is a failure, and the router pauses after it.
    fleet.runners[0].end_watches();
    fleet.wait_all("cooling_down").await;
    assert!(fleet.runners[0].log().watches <= 6);
}

#[tokio::test]
async fn the_health_service_reports_each_runner() {
    let mut fleet = Fleet::of(2).await;
    let name = |index: usize| format!("shard/{}", fleet.runners[index].address());
    let (drained, crashed) = (name(0), name(1));
    let mut seen = [watch(&fleet, &drained).await, watch(&fleet, &crashed).await];
    let mut unknown = watch(&fleet, "shard/127.0.0.1:1").await;
    let mut server = watch(&fleet, "").await;
    for stream in seen.iter_mut().chain([&mut server]) {
        wait_serving(stream).await;
    }
    assert_eq!(next(&mut unknown).await, ServingStatus::ServiceUnknown);
    assert_eq!(check(&fleet, &drained).await, Ok(ServingStatus::Serving));
    for unknown in ["shard/127.0.0.1:1", "evaluator.FunctionEvaluator"] {
        assert_eq!(check(&fleet, unknown).await, Err(Code::NotFound));
    }
    fleet.runners[0].set_serving(false);
    assert_eq!(next(&mut seen[0]).await, ServingStatus::NotServing);
    fleet.runners[1].crash().await;
    assert_eq!(next(&mut seen[1]).await, ServingStatus::NotServing);
    fleet.runners[0].set_serving(true);
    assert_eq!(next(&mut seen[0]).await, ServingStatus::Serving);
    assert_eq!(check(&fleet, &crashed).await, Ok(ServingStatus::NotServing));
    // The other two streams got no message and did not end.
    for stream in [&mut unknown, &mut server] {
        assert!(futures_util::FutureExt::now_or_never(stream.message()).is_none());
    }
}
