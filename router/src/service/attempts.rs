//! The attempts of one call: which runners it is sent to, and what becomes of it at each.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_ring::spill::choices;
use porch_fn_service::grpc::{Call, Reply, code_name, message_of};
use porch_fn_service::telemetry::span::Span;
use tokio::time::Instant;
use tonic::Code;

use super::Router;
use crate::error::RouteError;
use crate::forward::{Attempt, attempt};
use crate::metrics::{Outcome, Spill as Spilled};
use crate::shard::Shard;
use crate::status::TIME_UP;
use crate::view::{Tier, View};
use crate::wellness::Failure;

/// Times a call may be sent. A call that kills runners must not walk the ring.
const MAX_SENT: usize = 2;

/// What one call has used up.
#[derive(Default)]
pub(super) struct Tries {
    /// All attempts.
    attempts: usize,
    /// Attempts that broke after they were sent.
    sent: usize,
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

/// A call on its way to one runner.
struct Sent<'a> {
    router: &'a Router,
    shard: &'a Arc<Shard>,
    key: &'a str,
    /// The how manieth attempt this is.
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
    /// Walks the preference order of one snapshot. `None` when no usable runner was left to try.
    pub(super) async fn try_view(
        &self,
        view: &View,
        key: &str,
        call: &Call,
        estimate: f64,
        tries: &mut Tries,
    ) -> Result<Option<Reply>, RouteError> {
        let (tier, usable) = view.usable();
        let preference = view.ring().preference(key);
        let shards = view.shards();
        let routers = self.routers();
        let now = Instant::now();
        let load = |shard: &Arc<Shard>| shard.load(routers, now);
        let in_flight = shards.iter().map(load).fold(0, usize::saturating_add);
        let limits = self.options.spill.limits(in_flight, usable, estimate);
        let shard = |node: u16| shards.get(usize::from(node));
        let order = choices(
            preference,
            shards.len(),
            limits,
            |node| shard(node).map_or(usize::MAX, load),
            |node| shard(node).is_some_and(|shard| tier.admits(shard.standing())),
        );
        let owner = preference.first().copied();
        let unwell = owner.and_then(shard).is_none_or(|owner| !tier.admits(owner.standing()));
        for node in order {
            let Some(shard) = shard(node) else { continue };
            tries.attempts += 1;
            let sent = Sent { router: self, shard, key, number: tries.attempts };
            if let Some(before) = tries.last.take() {
                self.metrics.tried_again(before);
            }
            let attempt = self.send(&sent, call).await;
            let outcome = attempt.outcome();
            self.metrics.attempt(outcome);
            tries.last = Some(outcome);
            tries.owner_failed |= owner == Some(node) && outcome != Outcome::Answered;
            if let Attempt::NotTaken(reply) = &attempt {
                sent.note(code_name(reply.code()), &message_of(reply.status_headers()));
            }
            match attempt {
                Attempt::Answered(reply) | Attempt::NotTaken(reply) => {
                    match reply.code() {
                        Code::Unavailable | Code::DeadlineExceeded => sent.call_failed(),
                        _ => shard.did_well(),
                    }
                    if owner != Some(node) {
                        self.metrics.spilled(if tries.owner_failed {
                            Spilled::Failed
                        } else if unwell {
                            Spilled::Unwell
                        } else {
                            Spilled::Load
                        });
                    }
                    return Ok(Some(reply));
                }
                Attempt::NotSent => {
                    sent.note("NOT_SENT", "it could not be reached or refused the stream");
                    sent.failed();
                }
                Attempt::Broken => {
                    sent.note("BROKEN", "the stream broke or stalled during the call");
                    sent.failed();
                    if let Err(error) = self.allow_another(tries) {
                        return tries.refused.take().map(Some).ok_or(error);
                    }
                }
                Attempt::Shed(reply) => {
                    sent.note("SHED", &message_of(reply.status_headers()));
                    // That it has much to do is no failure; that its pods cannot be reached may be one.
                    if reply.code() == Code::Unavailable {
                        sent.call_failed();
                    }
                    // Nothing was done, so it costs nothing but the way: once more, whatever else fails.
                    if std::mem::replace(&mut tries.shed, true) {
                        return Ok(Some(reply));
                    }
                    tries.refused = Some(reply);
                }
            }
        }
        Ok(None)
    }

    async fn send(&self, sent: &Sent<'_>, call: &Call) -> Attempt {
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
                        break Attempt::Broken;
                    }
                }
            }
        };
        unanswered.answered = true;
        span.text("porch_fn.outcome", attempt.outcome().as_str());
        span.ended(attempt.code());
        attempt
    }

    /// Counts an attempt that was sent and failed, and says whether there may be one more.
    fn allow_another(&self, tries: &mut Tries) -> Result<(), RouteError> {
        tries.sent += 1;
        if tries.sent >= MAX_SENT {
            Err(RouteError::BrokenTwice)
        } else if self.budget.lock().withdraw(self.origin.elapsed()) {
            // It had found a runner: what it waited before counts no longer.
            tries.give_up = None;
            Ok(())
        } else {
            Err(RouteError::Budget)
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
    }
}
