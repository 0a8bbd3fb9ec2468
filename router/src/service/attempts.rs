//! The attempts of one call: picks runners, sends the call and handles each outcome.
//! `porch_fn_ring::spill` explains demand, and when a call spills to a runner that is not the
//! image's owner.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_admin::function_metrics::is_failed;
use porch_fn_grpc::{Call, Reply, code_name, message_of};
use porch_fn_grpc_client::unary::Lost;
use porch_fn_ring::spill::{Limits, choose};
use scopeguard::guard;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::Router;
use crate::error::RouteError;
use crate::forward::{Attempt, attempt};
use crate::health::{CallFailure, HealthState};
use crate::metrics::{Outcome, Spill};
use crate::runner::Runner;

/// How many times a call may be sent. A call that crashes runners must not reach all of them.
const MAX_SENT: usize = 2;
/// Additional attempts after runners were lost in silence: a ping or sent bytes were not
/// acknowledged in time ([`Lost::Silence`]). The cause is a node, a zone or the network, not the
/// call, and it may affect several runners.
const MAX_SILENT: usize = 2;

/// Pauses after a lost connection, because the same cause may affect other runners too. Connections
/// that are lost in silence are detected one after the other, within a ping interval.
const AFTER_CONNECTION: Duration = Duration::from_millis(100);
const AFTER_SILENCE: Duration = Duration::from_millis(500);

/// One call, and how many attempts it has used.
pub(super) struct Attempts<'a> {
    router: &'a Router,
    key: &'a str,
    call: &'a Call,
    /// The image's demand before this call.
    demand: f64,
    total: usize,
    /// Attempts that were interrupted after the request was sent, without those in `silent`.
    sent: usize,
    /// Attempts whose runner was lost in silence, up to [`MAX_SILENT`].
    silent: usize,
    /// A runner's refusal. It is the answer if no other runner takes the call.
    refused: Option<Reply>,
    /// How the last attempt ended.
    last: Option<Outcome>,
    /// The image's owner was tried and did not answer.
    owner_failed: bool,
    /// When to stop waiting for a runner. Set when no runner was available.
    pub(super) give_up: Option<Instant>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(router: &'a Router, key: &'a str, call: &'a Call, demand: f64) -> Self {
        Self {
            router,
            key,
            call,
            demand,
            total: 0,
            sent: 0,
            silent: 0,
            refused: None,
            last: None,
            owner_failed: false,
            give_up: None,
        }
    }

    /// Sends the call to one runner after the other. Returns `None` when no usable runner is left.
    pub(super) async fn run(&mut self) -> Result<Option<Reply>, RouteError> {
        let mut asked = Vec::new();
        while let Some((runner, spill)) = self.pick(&asked) {
            self.total += 1;
            if let Some(before) = self.last {
                self.router.metrics.record_retry(before);
            }
            let attempt = self.send(&runner, spill).await;
            let outcome = attempt.outcome();
            self.router.metrics.record_attempt(outcome);
            self.last = Some(outcome);
            self.owner_failed |= spill.is_none() && outcome != Outcome::Answered;
            if let Attempt::AnswerRefused(reply) = &attempt {
                self.note(&runner, code_name(reply.code()), &message_of(reply.status_headers()));
            }
            match attempt {
                Attempt::Answered(reply) | Attempt::AnswerRefused(reply) => {
                    // The runner, the function or a registry may be the cause of these two.
                    if !matches!(reply.code(), Code::Unavailable | Code::DeadlineExceeded) {
                        runner.record_success();
                    }
                    if let Some(why) = spill {
                        self.router.metrics.record_spill(why);
                    }
                    return Ok(Some(reply));
                }
                Attempt::NotSent => {
                    self.note(
                        &runner,
                        "NOT_SENT",
                        "the runner could not be reached, or it refused the stream",
                    );
                    runner.record_broken_call(|| self.may_eject());
                }
                Attempt::Broken(lost) => {
                    self.note(&runner, "BROKEN", "the stream broke or stalled during the call");
                    runner.record_broken_call(|| self.may_eject());
                    self.allow_another(lost, &runner)?;
                    match lost {
                        Lost::Stream => {}
                        Lost::Connection => sleep(AFTER_CONNECTION).await,
                        Lost::Silence => sleep(AFTER_SILENCE).await,
                    }
                }
                Attempt::Shed(reply) => {
                    self.note(&runner, "SHED", &message_of(reply.status_headers()));
                    // A busy runner answers RESOURCE_EXHAUSTED and has not failed. A runner that
                    // cannot reach its pods answers UNAVAILABLE and may be faulty.
                    if reply.code() == Code::Unavailable {
                        runner.record_failure(CallFailure::Pods(self.key), || self.may_eject());
                    }
                    // The runner did no work, so another attempt is allowed. A second refusal is
                    // the answer.
                    if self.refused.replace(reply).is_some() {
                        return self.take_refusal();
                    }
                }
            }
            asked.push(runner);
        }
        // A runner that sheds load is healthy. Its refusal is the answer if no other runner takes
        // the call.
        self.take_refusal()
    }

    /// Picks the best runner that is not in `asked`. Also returns why that runner is not the owner.
    /// Returns only that runner, so that a long call does not keep an old view in memory.
    fn pick(&self, asked: &[Arc<Runner>]) -> Option<(Arc<Runner>, Option<Spill>)> {
        let view = self.router.view.load();
        let (states, usable) = view.usable();
        let preference = view.ring.preference(self.key);
        let runners = &view.runners;
        let limits = Limits::new(view.load(), usable, self.demand, self.router.options.routers);
        let runner = |node: u16| runners.get(usize::from(node));
        let first = |states: &[HealthState]| {
            let eligible = |runner: &Arc<Runner>| {
                states.contains(&runner.state()) && !asked.iter().any(|asked| Arc::ptr_eq(asked, runner))
            };
            choose(
                preference,
                runners.len(),
                limits,
                |node| runner(node).map_or(usize::MAX, |runner| runner.load()),
                |node| runner(node).is_some_and(eligible),
            )
        };
        // A runner that cools down may flap, but is better than none.
        let cooling_down = || first(&[HealthState::CoolingDown]).filter(|_| states == [HealthState::Healthy]);
        let node = first(states).or_else(cooling_down)?;
        let owner = preference.first().copied();
        let is_healthy = owner.and_then(runner).is_some_and(|owner| states.contains(&owner.state()));
        let spill = match owner {
            owner if owner == Some(node) => None,
            _ if self.owner_failed => Some(Spill::Failed),
            _ if !is_healthy => Some(Spill::Unhealthy),
            _ => Some(Spill::Load),
        };
        Some((Arc::clone(runner(node)?), spill))
    }

    async fn send(&self, runner: &Runner, spill: Option<Spill>) -> Attempt {
        let (began, deadline) = (Instant::now(), self.call.deadline);
        let span = self.call.span.call();
        span.text("server.address", &runner.address);
        span.number("porch_fn.attempt", self.total);
        let why = match spill {
            _ if self.total > 1 => "retry",
            None => "owner",
            Some(Spill::Unhealthy) => "owner unhealthy",
            Some(Spill::Failed | Spill::Load) => "spill",
        };
        let close = deadline.saturating_duration_since(began) / 10;
        let mut ended = guard(None, |ended: Option<(Outcome, Code)>| {
            let took = began.elapsed();
            let is_served = !matches!(ended, Some((Outcome::Shed | Outcome::NotSent, _)));
            // If the attempt is dropped close to the call's deadline, the runner did not answer in
            // time. The caller's clock may be a little ahead of ours.
            let ended = ended.map(|(outcome, code)| (outcome.into_str(), code));
            let (outcome, code) = ended.unwrap_or_else(|| {
                if Instant::now() + close < deadline {
                    return ("cancelled", Code::Cancelled);
                }
                let code = Code::DeadlineExceeded;
                self.note(runner, code_name(code), "no answer before the call's deadline");
                ("deadline", code)
            });
            if is_served {
                runner.record_call(took, is_failed(code));
            }
            span.ended(code);
            tracing::debug!(
                image = self.key,
                runner = %runner.address,
                reason = why,
                attempt = self.total,
                outcome,
                code = code_name(code),
                ?took,
                "attempt ended"
            );
        });
        let _in_flight = runner.enter();
        let (limit, metrics) = (self.router.options.max_message, &self.router.metrics.client);
        let mut answer = pin!(attempt(runner, self.call, &span, limit, metrics));
        let attempt = loop {
            tokio::select! {
                biased;
                attempt = &mut answer => break attempt,
                () = runner.stalled() => {
                    // If no other runner is healthy, the call continues to wait.
                    let (states, usable) = self.router.view.load().usable();
                    if states.contains(&HealthState::Healthy) && usable > 0 {
                        break Attempt::Broken(Lost::Stream);
                    }
                }
            }
        };
        let outcome = attempt.outcome();
        span.text("porch_fn.outcome", outcome.into_str());
        *ended = Some((outcome, attempt.code()));
        attempt
    }

    /// Counts an attempt that was sent and failed. Returns an error if the call may not be sent
    /// again.
    fn allow_another(&mut self, lost: Lost, runner: &Runner) -> Result<(), RouteError> {
        if lost == Lost::Silence && self.silent < MAX_SILENT {
            self.silent += 1;
        } else {
            self.sent += 1;
            if self.sent >= MAX_SENT {
                return Err(RouteError::BrokenTwice);
            }
            let mut budget = self.router.budget.lock();
            let now = self.router.origin.elapsed();
            budget.reserve(runner.take_lost(), now);
            if !budget.withdraw(now) {
                return Err(RouteError::Budget);
            }
        }
        // The call had found a runner, so the time limit of its next wait starts anew.
        self.give_up = None;
        Ok(())
    }

    /// Returns the refusal as the answer, if there was one. A refusal tells the caller that no work
    /// was done. That is not true if another attempt was interrupted; the result is then an error.
    fn take_refusal(&mut self) -> Result<Option<Reply>, RouteError> {
        match self.refused.take() {
            Some(_) if self.sent + self.silent > 0 => Err(RouteError::Broken),
            refused => Ok(refused),
        }
    }

    /// Records a failed attempt for the status page.
    fn note(&self, runner: &Runner, code: &'static str, text: &str) {
        self.router.failures.note(self.key, &runner.address, code, text);
    }

    fn may_eject(&self) -> bool {
        self.router.view.load().may_eject()
    }
}
