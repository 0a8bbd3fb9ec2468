//! The attempts of one call: which runners it is sent to, and what becomes of it at each.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_ring::spill::choices;
use porch_fn_service::grpc::{Call, Reply, code_name, message_of};
use porch_fn_service::telemetry::span::Span;
use porch_fn_service::unary::Lost;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::Router;
use crate::error::RouteError;
use crate::forward::{Attempt, attempt};
use crate::metrics::{Outcome, Spill as Spilled};
use crate::shard::Shard;
use crate::status::TIME_UP;
use crate::view::Tier;
use crate::wellness::Failure;

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
pub(super) struct Tries {
    /// All attempts.
    attempts: usize,
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
    shard: Arc<Shard>,
    is_owner: bool,
    /// The owner may not be picked.
    owner_unwell: bool,
}

/// A call on its way to one runner.
struct Sent<'a> {
    router: &'a Router,
    shard: &'a Arc<Shard>,
    key: &'a str,
    /// Attempt number, from 1.
    number: usize,
}

/// Notes a call that was given up close to its deadline: by us, or by the caller, whose clock is a little ahead.
struct Unanswered<'a> {
    sent: &'a Sent<'a>,
    deadline: Instant,
    close: Duration,
    span: Span,
    answered: bool,
}

// === impl Router ===

impl Router {
    /// Sends the call to one runner after the other. `None` when no usable runner was left to try.
    pub(super) async fn try_all(
        &self,
        key: &str,
        call: &Call,
        estimate: f64,
        tries: &mut Tries,
    ) -> Result<Option<Reply>, RouteError> {
        let mut tried = Vec::new();
        while let Some(pick) = self.pick(key, estimate, &tried) {
            let shard = &pick.shard;
            tries.attempts += 1;
            let sent = Sent { router: self, shard, key, number: tries.attempts };
            if let Some(before) = tries.last.take() {
                self.metrics.tried_again(before);
            }
            let why = pick.why(tries);
            let attempt = self.send(&sent, call, why).await;
            let outcome = attempt.outcome();
            self.metrics.attempt(outcome);
            tries.last = Some(outcome);
            tries.owner_failed |= pick.is_owner && outcome != Outcome::Answered;
            if let Attempt::NotTaken(reply) = &attempt {
                sent.note(code_name(reply.code()), &message_of(reply.status_headers()));
            }
            match attempt {
                Attempt::Answered(reply) | Attempt::NotTaken(reply) => {
                    match reply.code() {
                        Code::Unavailable | Code::DeadlineExceeded => sent.call_failed(),
                        _ => shard.did_well(),
                    }
                    if let Some(spilled) = pick.spilled(tries) {
                        self.metrics.spilled(spilled);
                    }
                    return Ok(Some(reply));
                }
                Attempt::NotSent => {
                    sent.note("NOT_SENT", "it could not be reached or refused the stream");
                    sent.failed();
                }
                Attempt::Broken(lost) => {
                    sent.note("BROKEN", "the stream broke or stalled during the call");
                    sent.failed();
                    self.allow_another(tries, lost, shard)?;
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
                    tries.refused = Some(reply);
                    // Nothing was done, so it costs nothing but the way: once more, whatever else fails.
                    if std::mem::replace(&mut tries.shed, true) {
                        return tries.take_refusal();
                    }
                }
            }
            tried.push(pick.shard);
        }
        Ok(None)
    }

    /// The best runner of this moment that is not among `tried`.
    fn pick(&self, key: &str, estimate: f64, tried: &[Arc<Shard>]) -> Option<Pick> {
        let view = self.view.load();
        let (tier, usable) = view.usable();
        let preference = view.ring().preference(key);
        let shards = view.shards();
        let routers = self.routers();
        let now = Instant::now();
        let load = |shard: &Arc<Shard>| shard.load(routers, now);
        let in_flight = shards.iter().map(load).fold(0, usize::saturating_add);
        let limits = self.options.spill.limits(in_flight, usable, estimate);
        let shard = |node: u16| shards.get(usize::from(node));
        let first = |tier: Tier| {
            let eligible = |shard: &Arc<Shard>| {
                tier.admits(shard.standing()) && !tried.iter().any(|tried| Arc::ptr_eq(tried, shard))
            };
            choices(
                preference,
                shards.len(),
                limits,
                |node| shard(node).map_or(usize::MAX, load),
                |node| shard(node).is_some_and(eligible),
            )
            .next()
        };
        // Better a runner that may flap than none.
        let node = first(tier).or_else(|| (tier == Tier::Well).then(|| first(Tier::HeldDown)).flatten())?;
        let owner = preference.first().copied();
        Some(Pick {
            shard: Arc::clone(shard(node)?),
            is_owner: owner == Some(node),
            owner_unwell: owner.and_then(shard).is_none_or(|owner| !tier.admits(owner.standing())),
        })
    }

    async fn send(&self, sent: &Sent<'_>, call: &Call, why: &'static str) -> Attempt {
        let began = tracing::enabled!(tracing::Level::DEBUG).then(Instant::now);
        let _in_flight = sent.shard.enter();
        let span = call.span.call();
        span.text("server.address", sent.shard.identity().as_str());
        span.number("porch_fn.attempt", sent.number);
        let mut unanswered = Unanswered::new(sent, call.deadline, span.clone());
        let mut answer =
            pin!(attempt(sent.shard, call, &span, self.options.max_message, &self.metrics.client));
        let attempt = loop {
            tokio::select! {
                biased;
                attempt = &mut answer => break attempt,
                () = sent.shard.stalled() => {
                    // Where nobody else is, it waits on.
                    if matches!(self.view.load().usable(), (Tier::Well | Tier::WellAndHeldDown, 1..)) {
                        break Attempt::Broken(Lost::Stream);
                    }
                }
            }
        };
        unanswered.answered = true;
        span.text("porch_fn.outcome", attempt.outcome().as_str());
        span.ended(attempt.code());
        if let Some(began) = began {
            tracing::debug!(
                image = sent.key,
                shard = %sent.shard.identity(),
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
    fn allow_another(&self, tries: &mut Tries, lost: Lost, shard: &Shard) -> Result<(), RouteError> {
        if lost == Lost::Silence && tries.silent < MAX_SILENT {
            tries.silent += 1;
        } else {
            tries.sent += 1;
            if tries.sent >= MAX_SENT {
                return Err(RouteError::BrokenTwice);
            }
            let mut budget = self.budget.lock();
            let now = self.origin.elapsed();
            budget.reserve(shard.take_lost(), now);
            if !budget.withdraw(now) {
                return Err(RouteError::Budget);
            }
        }
        // It had found a runner: what it waited before counts no longer.
        tries.give_up = None;
        Ok(())
    }
}

// === impl Tries ===

impl Tries {
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
    fn why(&self, tries: &Tries) -> &'static str {
        match self.spilled(tries) {
            _ if tries.attempts > 1 => "retry",
            None => "owner",
            Some(Spilled::Unwell) => "owner unhealthy",
            Some(Spilled::Failed | Spilled::Load) => "spill",
        }
    }

    /// Why it is not the owner.
    fn spilled(&self, tries: &Tries) -> Option<Spilled> {
        match self {
            Self { is_owner: true, .. } => None,
            _ if tries.owner_failed => Some(Spilled::Failed),
            Self { owner_unwell: true, .. } => Some(Spilled::Unwell),
            _ => Some(Spilled::Load),
        }
    }
}

// === impl Sent ===

impl Sent<'_> {
    /// Remembers what went wrong, for the status page.
    fn note(&self, code: &'static str, text: &str) {
        self.router.failures.note(self.key, self.shard.identity().as_str(), code, text);
    }

    fn blame(&self, failure: Failure) {
        self.shard.blame(failure, || self.router.view.load().may_pass_over());
    }

    /// The hop failed.
    fn failed(&self) {
        if let Some(failure) = self.shard.failed() {
            self.blame(failure);
        }
    }

    /// The call failed in a way that may be the runner's fault or the function's.
    fn call_failed(&self) {
        self.blame(Failure::Call(self.router.hasher.hash_one(self.key)));
    }
}

// === impl Unanswered ===

impl<'a> Unanswered<'a> {
    fn new(sent: &'a Sent<'a>, deadline: Instant, span: Span) -> Self {
        let close = deadline.saturating_duration_since(Instant::now()) / 10;
        Self { sent, deadline, close, span, answered: false }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let time_is_up = Instant::now() + self.close >= self.deadline;
        self.span.ended(if time_is_up { Code::DeadlineExceeded } else { Code::Cancelled });
        if time_is_up {
            self.sent.note(TIME_UP, "no answer when the call's time was up");
            self.sent.call_failed();
        }
        tracing::debug!(
            image = self.sent.key,
            shard = %self.sent.shard.identity(),
            attempt = self.sent.number,
            outcome = if time_is_up { "deadline" } else { "cancelled" },
            "attempt ended"
        );
    }
}
