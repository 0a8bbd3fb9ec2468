//! Asks one runner for its health, for as long as it is a member.
//!
//! A gRPC health `Watch` costs nothing while nothing changes and tells a drain the moment it begins. It
//! runs on the connection that the calls use, so what breaks the calls breaks it too.
//!
//! A health stream that ends while the connection lives is opened again at once: a proxy in between may limit how
//! long streams live. It means something only if the next one fails, too.
//!
//! What health does not show is a runner that takes calls and never answers. One from which nothing comes although it
//! has calls is tried with an empty call: every runner answers that at once, if only by an error.

use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue};
use porch_fn_proto::{Chunks, frame};
use porch_fn_service::conn::Channel;
use porch_fn_service::grpc::{Charge, format_timeout};
use porch_fn_service::unary::{self, CallError};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::shard::Shard;
use crate::view::View;
use crate::wellness::{Reason, Sign, Standing};

/// How long a health answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Interval of `Check` where a runner has no `Watch`.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts to reach a runner that is out: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How often to look whether a runner needs a try.
const TRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bound on the answer to a try: an error text.
const MAX_TRY_ANSWER: usize = 1024 * 1024;

/// Probes `shard`, one of those in `view`, until the future is dropped.
pub(crate) async fn probe(shard: &Shard, view: &ArcSwap<View>) {
    tokio::join!(ask(shard), end_hold_downs(shard), try_calls(shard, view));
}

async fn ask(shard: &Shard) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let (error, answered) = watch(shard).await;
        let error = if error.code() == Code::Unimplemented { check(shard).await } else { error };
        let lived = began.elapsed() > LAST_PAUSE;
        if answered && lived && shard.connection().is_up() && !is_out(shard) {
            tracing::debug!(shard = %shard.identity(), code = ?error.code(), "health stream ended: opening another");
            continue;
        }
        tracing::debug!(shard = %shard.identity(), code = ?error.code(), "health stream ended");
        shard.note(Sign::Bad(Reason::Unreachable));
        // A stream that lived for a while broke for a new reason.
        if lived {
            pause = FIRST_PAUSE;
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Follows the health stream. Returns why it ended, and whether it was answered before.
async fn watch(shard: &Shard) -> (Status, bool) {
    let mut answered = false;
    let followed = follow(shard, &mut answered).await;
    (followed.err().unwrap_or_else(|| Status::unavailable("the health stream ended")), answered)
}

async fn follow(shard: &Shard, answered: &mut bool) -> Result<(), Status> {
    let mut client = client(shard).await?;
    let mut statuses = answer(client.watch(HealthCheckRequest::default())).await?.into_inner();
    let mut next = answer(statuses.message()).await?;
    while let Some(message) = next {
        *answered = true;
        shard.note(sign(message.status()));
        next = tokio::select! {
            next = statuses.message() => next?,
            // The stream has nothing new to say of a runner that broke a call: ask again.
            () = unreachable(shard) => return Err(Status::unavailable("a call broke")),
        };
    }
    Ok(())
}

fn is_out(shard: &Shard) -> bool {
    matches!(shard.standing(), Standing::Out(_))
}

/// Returns when `shard` is out because a call did not get through.
async fn unreachable(shard: &Shard) {
    let mut changed = shard.changes();
    while shard.standing() != Standing::Out(Reason::Unreachable) {
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Asks again and again, for a runner without `Watch`.
async fn check(shard: &Shard) -> Status {
    loop {
        let asked = async {
            let mut client = client(shard).await?;
            answer(client.check(HealthCheckRequest::default())).await
        };
        match asked.await {
            Ok(response) => shard.note(sign(response.get_ref().status())),
            Err(status) => return status,
        }
        sleep(CHECK_INTERVAL).await;
    }
}

async fn client(shard: &Shard) -> Result<HealthClient<Channel>, Status> {
    let connection = shard.connection();
    let sender = connection.sender().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(HealthClient::with_origin(Channel(sender), connection.origin().clone()))
}

async fn answer<T>(asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(ANSWER, asked).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no health answer")))
}

fn sign(status: ServingStatus) -> Sign {
    if status == ServingStatus::Serving { Sign::Serving } else { Sign::Bad(Reason::Draining) }
}

async fn end_hold_downs(shard: &Shard) {
    let mut changed = shard.changes();
    loop {
        match shard.next_tick() {
            Some(due) => {
                tokio::select! {
                    () = sleep_until(due) => shard.tick(),
                    _ = changed.changed() => (),
                }
            }
            None if changed.changed().await.is_err() => return,
            None => (),
        }
    }
}

/// Sends empty calls when they are due, and notes whether they are answered.
async fn try_calls(shard: &Shard, view: &ArcSwap<View>) {
    loop {
        sleep(TRY_INTERVAL).await;
        if !shard.is_try_due() || !shard.connection().is_up() {
            continue;
        }
        let (framed, free) = (frame(Chunks::default()), Charge::default());
        let tried = unary::call(shard.connection(), try_headers(), &framed, MAX_TRY_ANSWER, &free);
        match timeout(ANSWER, tried).await {
            Ok(Ok(_) | Err(CallError::TooLarge { .. })) => shard.try_answered(),
            // That it is unreachable the health stream tells.
            _ if !shard.connection().is_up() => (),
            _ => shard.try_failed(|| view.load().may_pass_over()),
        }
    }
}

fn try_headers() -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(3);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    format_timeout(&mut headers, ANSWER);
    headers
}
