//! One attempt: sends the call to one runner and classifies the outcome.

use http::HeaderMap;
use porch_fn_admin::rpc_metrics::RpcMetrics;
use porch_fn_grpc::{Call, FUNCTIONS_TRAILER, Reply, START_TRAILER, format_timeout, is_shed, load_of};
use porch_fn_grpc_client::unary::{self, CallError, Lost};
use porch_fn_telemetry::span::Span;
use tokio::time::Instant;
use tonic::Code;

use crate::metrics::Outcome;
use crate::runner::Runner;

/// How one attempt ended.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The runner answered. The answer goes to the caller, with success or with an error.
    Answered(Reply),
    /// The runner answered, but the answer is too large or there is no room for it. The caller gets
    /// this reply instead.
    AnswerRefused(Reply),
    /// The runner refused the call without running it, and sent the trailer for load shedding.
    Shed(Reply),
    /// There was no connection, or the stream was refused. The runner processed nothing.
    NotSent,
    /// The stream or the connection was lost after the request was sent.
    Broken(Lost),
}

impl Attempt {
    /// The outcome for the metrics.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Answered(_) | Self::AnswerRefused(_) => Outcome::Answered,
            Self::Shed(_) => Outcome::Shed,
            Self::NotSent => Outcome::NotSent,
            Self::Broken(_) => Outcome::Broken,
        }
    }

    /// The gRPC code of the attempt.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Answered(reply) | Self::AnswerRefused(reply) | Self::Shed(reply) => reply.code(),
            Self::NotSent | Self::Broken(_) => Code::Unavailable,
        }
    }
}

/// Prefix of the trailers that a runner sends to the router. The caller does not get them, except
/// those for people.
const OWN_PREFIX: &str = "porch-fn-";

/// Sends `call` to `runner`: the same bytes and metadata, except for the remaining time. `limit`
/// bounds the answer in bytes. `span` becomes the parent of the runner's span.
pub(crate) async fn attempt(
    runner: &Runner,
    call: &Call,
    span: &Span,
    limit: usize,
    metrics: &RpcMetrics,
) -> Attempt {
    let headers = || {
        let mut headers = call.headers.clone();
        span.inject(&mut headers);
        format_timeout(&mut headers, call.deadline.saturating_duration_since(Instant::now()));
        headers
    };
    let answer = unary::call(&runner.connection, headers, &call.framed, limit, &call.charge);
    match metrics.client(&call.framed, call.deadline, answer).await {
        Ok(mut reply) => {
            let load = load_of(reply.status_headers());
            runner.answered(load);
            if load.is_none() && reply.code() == Code::Unavailable && runner.reports_load() {
                tracing::debug!(runner = %runner.address, "a proxy answered in the runner's place");
                return Attempt::Broken(Lost::Stream);
            }
            let shed = is_shed(reply.status_headers());
            strip_own(reply.status_headers_mut());
            if shed { Attempt::Shed(reply) } else { Attempt::Answered(reply) }
        }
        Err(CallError::TooLarge { size, limit }) => {
            runner.answered(None);
            let text = format!(
                "grpc: received message larger than max ({size} vs. {limit}): the function's answer is above the \
                 router's --max-request-body-size; raise it on router and runners, and Porch's limit with it"
            );
            Attempt::AnswerRefused(Reply::failed(Code::ResourceExhausted, &text))
        }
        Err(CallError::Refused(refused)) => {
            runner.answered(None);
            Attempt::AnswerRefused(refused.into())
        }
        Err(CallError::Connect(_) | CallError::NotSent) => Attempt::NotSent,
        Err(CallError::Broken { lost, error }) => {
            tracing::debug!(runner = %runner.address, reason = ?lost, error, "call broke");
            Attempt::Broken(lost)
        }
    }
}

fn strip_own(trailers: &mut HeaderMap) {
    let is_own =
        |name: &str| name.starts_with(OWN_PREFIX) && ![FUNCTIONS_TRAILER, START_TRAILER].contains(&name);
    let own: Vec<_> = trailers.keys().filter(|name| is_own(name.as_str())).cloned().collect();
    for name in own {
        trailers.remove(name);
    }
}
