//! Checks the health of one runner for as long as the runner is a member.
//!
//! A gRPC health `Watch` stream needs no traffic while nothing changes, and reports a drain as soon
//! as it begins. The stream uses the same connection as the calls, so a lost connection ends the
//! stream too.
//!
//! A health stream that ends on an open connection is opened again at once, because a proxy may
//! limit how long streams last. The runner counts as unreachable only if the next stream fails too.
//!
//! Health checks do not detect a runner that accepts calls and never answers. A runner that has
//! calls but sends nothing is probed with an empty call. Every runner answers an empty call at
//! once, with an error.

use std::time::Duration;

use arc_swap::ArcSwap;
use porch_fn_backoff::{Backoff, spread};
use porch_fn_grpc::{Charge, code_name};
use porch_fn_grpc_client::conn::Channel;
use porch_fn_grpc_client::unary::{self, CallError};
use porch_fn_proto::{Chunks, frame};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::health::Observation;
use crate::runner::Runner;
use crate::view::View;

/// How long a health answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Interval of `Check` requests to a runner without `Watch`.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts to reach an unavailable runner: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How often to check whether a cooldown is over or a probe is due.
const TICK: Duration = Duration::from_secs(1);
/// Largest answer to a probe, in bytes. The answer is an error text.
const MAX_PROBE_ANSWER: usize = 1024 * 1024;

/// Probes `runner`, which is in `view`, until the future is dropped.
pub(crate) async fn probe(runner: &Runner, view: &ArcSwap<View>) {
    tokio::join!(check_health(runner), probe_calls(runner, view));
}

async fn check_health(runner: &Runner) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        let (began, mut answered) = (Instant::now(), false);
        let mut ended = watch(runner, &mut answered).await;
        if matches!(&ended, Err(status) if status.code() == Code::Unimplemented) {
            ended = check(runner).await;
        }
        let code = ended.map_or_else(|status| status.code(), |()| Code::Ok);
        tracing::debug!(runner = %runner.address, code = code_name(code), "health stream ended");
        let lived = began.elapsed() > LAST_PAUSE;
        if answered && lived && runner.connection.is_up() && !runner.state().is_unavailable() {
            continue;
        }
        runner.observe(Observation::Unreachable);
        // If the stream lived for a while, its end is a new fault. So the next pause is the
        // shortest again.
        if lived {
            backoff.reset();
        }
        sleep(spread(backoff.next_pause(), 0.5..1.0)).await;
    }
}

/// Follows the health stream to its end. `answered` becomes true with the first answer.
async fn watch(runner: &Runner, answered: &mut bool) -> Result<(), Status> {
    let mut client = client(runner).await?;
    let mut statuses = answer(client.watch(HealthCheckRequest::default())).await?.into_inner();
    let mut next = answer(statuses.message()).await?;
    while let Some(message) = next {
        *answered = true;
        runner.observe(observed(message.status()));
        next = tokio::select! {
            next = statuses.message() => next?,
            // A call has marked the runner unreachable. The runner sends nothing on this stream
            // until its serving status changes. A new stream reports the current status.
            () = runner.unreachable() => return Err(Status::unavailable("a call broke")),
        };
    }
    Ok(())
}

/// Sends `Check` requests in a loop, to a runner without `Watch`.
async fn check(runner: &Runner) -> Result<(), Status> {
    loop {
        let mut client = client(runner).await?;
        let response = answer(client.check(HealthCheckRequest::default())).await?;
        runner.observe(observed(response.get_ref().status()));
        sleep(CHECK_INTERVAL).await;
    }
}

async fn client(runner: &Runner) -> Result<HealthClient<Channel>, Status> {
    let connection = &runner.connection;
    let sender = connection.sender().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(HealthClient::with_origin(Channel(sender), connection.origin().clone()))
}

async fn answer<T>(asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(ANSWER, asked).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no health answer")))
}

fn observed(status: ServingStatus) -> Observation {
    if status == ServingStatus::Serving { Observation::Serving } else { Observation::Draining }
}

/// Sends empty calls when they are due, and records whether they are answered.
async fn probe_calls(runner: &Runner, view: &ArcSwap<View>) {
    loop {
        sleep(TICK).await;
        runner.tick();
        if !runner.is_probe_due() || !runner.connection.is_up() {
            continue;
        }
        let (framed, free) = (frame(Chunks::default()), Charge::default());
        let headers = || unary::request_headers(ANSWER);
        let probed = unary::call(&runner.connection, headers, &framed, MAX_PROBE_ANSWER, &free);
        match timeout(ANSWER, probed).await {
            Ok(Ok(_) | Err(CallError::TooLarge { .. })) => runner.probe_answered(),
            // The connection is lost, which the health stream reports.
            _ if !runner.connection.is_up() => (),
            _ => runner.probe_failed(|| view.load().may_eject()),
        }
    }
}
