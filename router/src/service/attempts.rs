//! The attempts of one call: which runners it is sent to, and what becomes of it at each.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_grpc::{Call, Reply, code_name, message_of};
use porch_fn_grpc_client::unary::Lost;
use porch_fn_ring::spill::choose;
use porch_fn_telemetry::span::Span;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::Router;
use crate::error::RouteError;
use crate::forward::{Attempt, attempt};
use crate::health::CallFailure;
use crate::metrics::{Outcome, Spill as Spilled};
use crate::runner::Runner;
use crate::view::Tier;

/// Times a call may be sent. A call that kills runners must not walk the ring.
const MAX_SENT: usize = 2;
/// Runners that may be lost in silence beside that. A node or a zone takes several with it, and the call
/// is not to blame.
const MAX_SILENT: usize = 2;

/// What takes one runner may be about to take others: pauses after a connection was lost, until
/// that shows. Connections that die in silence are noticed one after the other, within a ping
/// interval.
const AFTER_CONNECTION: Duration = Duration::from_millis(100);
const AFTER_SILENCE: Duration = Duration::from_millis(500);

/// What one call has used up.
#[derive(Default)]
pub(super) struct Attempts {
    /// All attempts.
    total: usize,
    /// Attempts that broke after they were sent.
    sent: usize,
    /// Attempts whose runner was lost in silence, up to [`MAX_SILENT`].
    silent: usize,
    /// A runner has refused it.
    shed: bool,
    /// The last refusal, which is the answer when nobody takes the call.
    pub(super) refused: Option<Reply>,
    /// How the last attempt ended.
    last: Option<Outcome>,
    /// The image's owner was among those that did not answer.
    owner_failed: bool,
    /// When to stop waiting for a runner; set when there was none to send to.
    pub(super) give_up: Option<Instant>,
}

/// A runner to send to. Nothing else of the view is held while the call is under way.
struct Pick {
    runner: Arc<Runner>,
    is_owner: bool,
    /// The owner may not be picked.
    owner_unhealthy: bool,
}

/// A call on its way to one runner. If it is dropped unanswered, close to the call's deadline, the runner did not
/// answer in time: by our clock, or by the caller's, which is a little ahead.
struct Sent<'a> {
    router: &'a Router,
    runner: &'a Arc<Runner>,
    key: &'a str,
    /// Attempt number, from 1.
    number: usize,
    span: Span,
    deadline: Instant,
    /// How close to the deadline counts.
    close: Duration,
    answered: bool,
}

// === impl Router ===

impl Router {
    /// Sends the call to one runner after the other. `None` when no usable runner was left to try.
    pub(super) async fn attempt_all(
        &self,
        key: &str,
        call: &Call,
        estimate: f64,
        attempts: &mut Attempts,
    ) -> Result<Option<Reply>, RouteError> {
        let mut asked = Vec::new();
        while let Some(pick) = self.pick(key, estimate, &asked) {
            let runner = &pick.runner;
            attempts.total += 1;
            let mut sent = Sent::new(self, runner, key, attempts.total, call);
            if let Some(before) = attempts.last.take() {
                self.metrics.retried(before);
            }
            let why = pick.why(attempts);
            let attempt = self.send(&mut sent, call, why).await;
            let outcome = attempt.outcome();
            self.metrics.attempt(outcome);
            attempts.last = Some(outcome);
            attempts.owner_failed |= pick.is_owner && outcome != Outcome::Answered;
            if let Attempt::NotTaken(reply) = &attempt {
                sent.note(code_name(reply.code()), &message_of(reply.status_headers()));
            }
            match attempt {
                Attempt::Answered(reply) | Attempt::NotTaken(reply) => {
                    match reply.code() {
                        Code::Unavailable | Code::DeadlineExceeded => sent.call_failed(),
                        _ => runner.record_success(),
                    }
                    if let Some(spilled) = pick.spilled(attempts) {
                        self.metrics.spilled(spilled);
                    }
                    return Ok(Some(reply));
                }
                Attempt::NotSent => {
                    sent.note("NOT_SENT", "it could not be reached or refused the stream");
                    sent.hop_failed();
                }
                Attempt::Broken(lost) => {
                    sent.note("BROKEN", "the stream broke or stalled during the call");
                    sent.hop_failed();
                    self.allow_another(attempts, lost, runner)?;
                    match lost {
                        Lost::Stream => {}
                        Lost::Connection => sleep(AFTER_CONNECTION).await,
                        Lost::Silence => sleep(AFTER_SILENCE).await,
                    }
                }
                Attempt::Shed(reply) => {
                    sent.note("SHED", &message_of(reply.status_headers()));
                    // That it has much to do is no failure; that its pods cannot be reached may be one.
                    if reply.code() == Code::Unavailable {
                        sent.call_failed();
                    }
                    attempts.refused = Some(reply);
                    // Nothing was done, so it costs nothing but the way: once more, whatever else fails.
                    if std::mem::replace(&mut attempts.shed, true) {
                        return attempts.take_refusal();
                    }
                }
            }
            asked.push(Arc::clone(runner));
        }
        Ok(None)
    }

    /// The best runner of this moment that is not among `asked`.
    fn pick(&self, key: &str, estimate: f64, asked: &[Arc<Runner>]) -> Option<Pick> {
        let view = self.view.load();
        let (tier, usable) = view.usable();
        let preference = view.ring().preference(key);
        let runners = view.runners();
        let routers = self.routers();
        let now = Instant::now();
        let load = |runner: &Arc<Runner>| runner.load(routers, now);
        let in_flight = runners.iter().map(load).fold(0, usize::saturating_add);
        let limits = self.options.spill.limits(in_flight, usable, estimate);
        let runner = |node: u16| runners.get(usize::from(node));
        let first = |tier: Tier| {
            let eligible = |runner: &Arc<Runner>| {
                tier.admits(runner.state()) && !asked.iter().any(|asked| Arc::ptr_eq(asked, runner))
            };
            choose(
                preference,
                runners.len(),
                limits,
                |node| runner(node).map_or(usize::MAX, load),
                |node| runner(node).is_some_and(eligible),
            )
        };
        // Better a runner that may flap than none.
        let node =
            first(tier).or_else(|| (tier == Tier::Healthy).then(|| first(Tier::CoolingDown)).flatten())?;
        let owner = preference.first().copied();
        Some(Pick {
            runner: Arc::clone(runner(node)?),
            is_owner: owner == Some(node),
            owner_unhealthy: owner.and_then(runner).is_none_or(|owner| !tier.admits(owner.state())),
        })
    }

    async fn send(&self, sent: &mut Sent<'_>, call: &Call, why: &'static str) -> Attempt {
        let began = tracing::enabled!(tracing::Level::DEBUG).then(Instant::now);
        let _in_flight = sent.runner.enter();
        let limit = self.options.max_message;
        let mut answer = pin!(attempt(sent.runner, call, &sent.span, limit, &self.metrics.client));
        let attempt = loop {
            tokio::select! {
                biased;
                attempt = &mut answer => break attempt,
                () = sent.runner.stalled() => {
                    // Where nobody else is, it waits on.
                    if matches!(self.view.load().usable(), (Tier::Healthy | Tier::HealthyAndCoolingDown, 1..)) {
                        break Attempt::Broken(Lost::Stream);
                    }
                }
            }
        };
        sent.answered = true;
        sent.span.text("porch_fn.outcome", attempt.outcome().as_str());
        sent.span.ended(attempt.code());
        if let Some(began) = began {
            tracing::debug!(
                image = sent.key,
                runner = %sent.runner.identity(),
                why,
                attempt = sent.number,
                outcome = attempt.outcome().as_str(),
                code = code_name(attempt.code()),
                took = ?began.elapsed(),
                "attempt ended"
            );
        }
        attempt
    }

    /// Counts an attempt that was sent and failed, and says whether there may be one more.
    fn allow_another(&self, attempts: &mut Attempts, lost: Lost, runner: &Runner) -> Result<(), RouteError> {
        if lost == Lost::Silence && attempts.silent < MAX_SILENT {
            attempts.silent += 1;
        } else {
            attempts.sent += 1;
            if attempts.sent >= MAX_SENT {
                return Err(RouteError::BrokenTwice);
            }
            let mut budget = self.budget.lock();
            let now = self.origin.elapsed();
            budget.reserve(runner.take_lost(), now);
            if !budget.withdraw(now) {
                return Err(RouteError::Budget);
            }
        }
        // It had found a runner: what it waited before counts no longer.
        attempts.give_up = None;
        Ok(())
    }
}

// === impl Attempts ===

impl Attempts {
    /// The refusal that is the answer, if there was one. It says that nothing was done, which does not
    /// hold for a call that has broken, too.
    pub(super) fn take_refusal(&mut self) -> Result<Option<Reply>, RouteError> {
        match self.refused.take() {
            Some(_) if self.sent + self.silent > 0 => Err(RouteError::Broken),
            refused => Ok(refused),
        }
    }
}

// === impl Pick ===

impl Pick {
    /// Why this runner, for the log.
    fn why(&self, attempts: &Attempts) -> &'static str {
        match self.spilled(attempts) {
            _ if attempts.total > 1 => "retry",
            None => "owner",
            Some(Spilled::Unhealthy) => "owner unhealthy",
            Some(Spilled::Failed | Spilled::Load) => "spill",
        }
    }

    /// Why it is not the owner.
    fn spilled(&self, attempts: &Attempts) -> Option<Spilled> {
        match self {
            Self { is_owner: true, .. } => None,
            _ if attempts.owner_failed => Some(Spilled::Failed),
            Self { owner_unhealthy: true, .. } => Some(Spilled::Unhealthy),
            _ => Some(Spilled::Load),
        }
    }
}

// === impl Sent ===

impl<'a> Sent<'a> {
    fn new(router: &'a Router, runner: &'a Arc<Runner>, key: &'a str, number: usize, call: &Call) -> Self {
        let span = call.span.call();
        span.text("server.address", runner.identity().as_str());
        span.number("porch_fn.attempt", number);
        let close = call.deadline.saturating_duration_since(Instant::now()) / 10;
        Self { router, runner, key, number, span, deadline: call.deadline, close, answered: false }
    }

    /// Remembers what went wrong, for the status page.
    fn note(&self, code: &'static str, text: &str) {
        self.router.failures.note(self.key, self.runner.identity().as_str(), code, text);
    }

    fn record_failure(&self, failure: CallFailure) {
        self.runner.record_failure(failure, || self.router.view.load().may_eject());
    }

    /// The stream or the connection failed.
    fn hop_failed(&self) {
        if let Some(failure) = self.runner.record_broken_call() {
            self.record_failure(failure);
        }
    }

    /// The call failed in a way that may be the runner's fault or the function's.
    fn call_failed(&self) {
        self.record_failure(CallFailure::Answer(self.router.hasher.hash_one(self.key)));
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let time_is_up = Instant::now() + self.close >= self.deadline;
        self.span.ended(if time_is_up { Code::DeadlineExceeded } else { Code::Cancelled });
        if time_is_up {
            self.note(code_name(Code::DeadlineExceeded), "no answer when the call's time was up");
            self.call_failed();
        }
        tracing::debug!(
            image = self.key,
            runner = %self.runner.identity(),
            attempt = self.number,
            outcome = if time_is_up { "deadline" } else { "cancelled" },
            "attempt ended"
        );
    }
}
