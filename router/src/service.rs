//! One call through the router: image, ring, preference order, attempts.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_image::{AllowedImages, shard_key};
use porch_fn_proto::{Chunks, peek};
use porch_fn_ring::spill::{Demand, Spill, choices};
use porch_fn_service::admin::failures::{Failure as Failed, Failures};
use porch_fn_service::grpc::{Call, Evaluate, Reply, code_name, message_of};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use crate::budget::RetryBudget;
use crate::error::RouteError;
use crate::forward::{Attempt, attempt};
use crate::metrics::{Metrics, Outcome, Spill as Spilled};
use crate::shard::Shard;
use crate::status::TIME_UP;
use crate::view::View;
use crate::wellness::{Failure, Standing};

/// Images whose demand is remembered. They are caller input, so they are bounded; the least recently
/// used one starts again from nothing.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// How long a call waits for a runner when there is none.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
/// How long before its deadline such a call ends, so that its caller reads why and not only that time is up.
const NO_RUNNER_MARGIN: Duration = Duration::from_millis(50);
/// Pause before runners are asked again that are ready and yet did not take a call: they reset its stream.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Times a call may be sent. A call that kills runners must not walk the ring.
const MAX_SENT: usize = 2;

/// Settings of the forwarding path.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// `--default-image-prefix`.
    pub(crate) default_prefix: String,
    /// `--allowed-images`.
    pub(crate) allowed_images: AllowedImages,
    /// `--max-request-body-size` in bytes, for both directions.
    pub(crate) max_message: usize,
    /// The spill rule, with `--router-count`.
    pub(crate) spill: Spill,
}

/// The router's evaluator. State is per process and soft: losing it costs locality for seconds.
#[derive(Debug)]
pub(crate) struct Router {
    options: Options,
    view: Arc<ArcSwap<View>>,
    /// Wakes calls that wait for a runner.
    changed: watch::Receiver<()>,
    demand: Mutex<LruCache<String, Demand>>,
    budget: Mutex<RetryBudget>,
    metrics: Arc<Metrics>,
    failures: Failures,
    origin: Instant,
    hasher: RandomState,
}

/// An image that was asked for lately.
#[derive(Debug, Clone)]
pub(crate) struct ImageLoad {
    /// Its shard key.
    pub(crate) key: String,
    /// Its calls in flight through this router.
    pub(crate) in_flight: usize,
}

impl Router {
    /// A router over whatever `view` holds. `changed` is sent to when a runner's standing changes.
    pub(crate) fn new(
        options: Options,
        view: Arc<ArcSwap<View>>,
        changed: watch::Receiver<()>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            options,
            view,
            changed,
            demand: Mutex::new(LruCache::new(MAX_IMAGES)),
            budget: Mutex::default(),
            metrics,
            failures: Failures::default(),
            origin: Instant::now(),
            hasher: RandomState::new(),
        }
    }

    /// Routers that share the runners (`--router-count`).
    pub(crate) fn routers(&self) -> usize {
        self.options.spill.routers
    }

    /// The images asked for lately, busiest first, at most `limit`.
    pub(crate) fn images(&self, limit: usize) -> Vec<ImageLoad> {
        let mut images: Vec<_> = self
            .demand
            .lock()
            .iter()
            .map(|(key, demand)| ImageLoad { key: key.clone(), in_flight: demand.in_flight() })
            .collect();
        images.sort_by(|a, b| b.in_flight.cmp(&a.in_flight).then_with(|| a.key.cmp(&b.key)));
        images.truncate(limit);
        images
    }

    /// What of late went wrong here: calls that this router failed, and attempts after which they moved on. What a runner
    /// failed, it tells itself.
    pub(crate) fn failures(&self) -> Vec<Failed> {
        self.failures.all()
    }

    async fn route(&self, mut call: Call) -> Result<Reply, RouteError> {
        // Taken out: an inflated message is not needed any longer.
        let key = self.key(&call.take_message()).inspect_err(|error| self.failed("", error))?;
        self.route_to(&key, call).await.inspect_err(|error| self.failed(&key, error))
    }

    fn failed(&self, key: &str, error: &RouteError) {
        self.failures.note(key, "", code_name(error.code()), &error.to_string());
    }

    async fn route_to(&self, key: &str, mut call: Call) -> Result<Reply, RouteError> {
        call.charge.claim(key)?;
        let load = self.enter(key);
        let mut changed = self.changed.clone();
        let mut tries = Tries::default();
        let mut waited = Waited { metrics: &self.metrics, before: Duration::ZERO, since: None };
        loop {
            changed.mark_unchanged();
            let view = self.view.load_full();
            if let Some(reply) = self.try_view(&view, key, &call, load.estimate, &mut tries).await? {
                return Ok(reply);
            }
            // A runner that sheds is well: its refusal is the answer when nobody else takes the call.
            if let Some(reply) = tries.refused.take() {
                return Ok(reply);
            }
            let give_up = *tries.give_up.get_or_insert_with(|| give_up(call.deadline));
            let again = if self.view.load().usable().1 > 0 { Instant::now() + ASK_AGAIN } else { give_up };
            waited.since = Some(Instant::now());
            let unchanged = timeout_at(again.min(give_up), changed.changed()).await.is_err();
            waited.end();
            if unchanged && Instant::now() >= give_up {
                let view = self.view.load();
                return Err(match view.usable() {
                    (_, 0) => RouteError::NoRunner(view.summary()),
                    _ => RouteError::NotTaken,
                });
            }
        }
    }

    /// The shard key of the request's image, which must be allowed.
    fn key(&self, message: &Chunks) -> Result<String, RouteError> {
        let peeked = peek(message)?;
        if peeked.image.is_empty() {
            return Err(RouteError::NoImage);
        }
        self.options.allowed_images.check(&peeked.image, &peeked.tag)?;
        let tag = (!peeked.tag.is_empty()).then_some(&*peeked.tag);
        Ok(shard_key(&peeked.image, tag, &self.options.default_prefix).into_owned())
    }

    /// Walks the preference order of one snapshot. `None` when no usable runner was left to try.
    async fn try_view(
        &self,
        view: &View,
        key: &str,
        call: &Call,
        estimate: f64,
        tries: &mut Tries,
    ) -> Result<Option<Reply>, RouteError> {
        let (wanted, usable) = view.usable();
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
            |node| shard(node).is_some_and(|shard| shard.standing() == wanted),
        );
        let owner = preference.first().copied();
        let unwell = owner.and_then(shard).is_none_or(|owner| owner.standing() != wanted);
        for node in order {
            let Some(shard) = shard(node) else { continue };
            let sent = Sent { router: self, shard, key };
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
        let mut unanswered = Unanswered::new(sent, call.deadline);
        let mut answer = pin!(attempt(sent.shard, call, self.options.max_message, &self.metrics.client));
        let attempt = loop {
            tokio::select! {
                biased;
                attempt = &mut answer => break attempt,
                () = sent.shard.stalled() => {
                    // Where nobody else is, it waits on.
                    if matches!(self.view.load().usable(), (Standing::Well | Standing::HeldDown, 1..)) {
                        break Attempt::Broken;
                    }
                }
            }
        };
        unanswered.answered = true;
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

    /// Counts the call in, and says how busy its image was before it.
    fn enter<'a>(&'a self, key: &'a str) -> Load<'a> {
        self.budget.lock().deposit();
        let now = self.origin.elapsed();
        let mut images = self.demand.lock();
        let demand = images.get_or_insert_mut_ref(key, Demand::default);
        let estimate = demand.estimate(now);
        demand.add(now);
        Load { router: self, key, estimate }
    }
}

impl Evaluate for Router {
    async fn evaluate(&self, call: Call) -> Reply {
        let mut ending =
            Ending { metrics: &self.metrics, started: Instant::now(), deadline: call.deadline, code: None };
        let reply = self.route(call).await.unwrap_or_else(Reply::from);
        ending.code = Some(reply.code());
        reply
    }
}

/// Counts how a call ended, also when it is dropped: at its deadline, or because the caller is gone.
struct Ending<'a> {
    metrics: &'a Metrics,
    started: Instant,
    deadline: Instant,
    code: Option<Code>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let dropped = if Instant::now() < self.deadline { Code::Cancelled } else { Code::DeadlineExceeded };
        self.metrics.answered(self.code.unwrap_or(dropped), self.started.elapsed());
    }
}

/// What one call has used up.
#[derive(Default)]
struct Tries {
    /// Attempts that broke after they were sent.
    sent: usize,
    /// A runner has refused it.
    shed: bool,
    /// The last refusal, which is the answer when nobody takes the call.
    refused: Option<Reply>,
    /// How the last attempt ended.
    last: Option<Outcome>,
    /// The image's owner was among those that did not answer.
    owner_failed: bool,
    /// When to stop waiting for a runner; set when there was none to send to.
    give_up: Option<Instant>,
}

/// How long a call had no runner to go to. Counted when it is dropped, if it ever waited.
struct Waited<'a> {
    metrics: &'a Metrics,
    before: Duration,
    since: Option<Instant>,
}

/// A call in flight through the router, counted for its image.
struct Load<'a> {
    router: &'a Router,
    key: &'a str,
    estimate: f64,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        if let Some(demand) = self.router.demand.lock().peek_mut(self.key) {
            demand.sub(self.router.origin.elapsed());
        }
    }
}

/// A call on its way to one runner.
struct Sent<'a> {
    router: &'a Router,
    shard: &'a Arc<Shard>,
    key: &'a str,
}

/// Notes a call that was given up close to its deadline: by us, or by the caller, whose clock is a little ahead.
struct Unanswered<'a> {
    sent: &'a Sent<'a>,
    deadline: Instant,
    close: Duration,
    answered: bool,
}

// === impl Waited ===

impl Waited<'_> {
    fn end(&mut self) {
        self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.end();
        if !self.before.is_zero() {
            self.metrics.waited(self.before);
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
    fn new(sent: &'a Sent<'a>, deadline: Instant) -> Self {
        let close = deadline.saturating_duration_since(Instant::now()) / 10;
        Self { sent, deadline, close, answered: false }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered && Instant::now() + self.close >= self.deadline {
            self.sent.note(TIME_UP, "no answer when the call's time was up");
            self.sent.call_failed();
        }
    }
}

/// When a call stops waiting for a runner.
fn give_up(deadline: Instant) -> Instant {
    let now = Instant::now();
    deadline.checked_sub(NO_RUNNER_MARGIN).unwrap_or(now).min(now + NO_RUNNER_WAIT)
}
