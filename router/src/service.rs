//! One call through the router: image, attempts, waiting for a runner.

mod attempts;

use std::hash::RandomState;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_admin::failures::Failures;
use porch_fn_grpc::{Call, Evaluate, Reply, code_name};
use porch_fn_image::{AllowedImages, shard_key};
use porch_fn_proto::{Chunks, peek};
use porch_fn_ring::spill::Demand;
use porch_fn_telemetry::span;
use scopeguard::guard;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use self::attempts::Attempts;
use crate::budget::RetryBudget;
use crate::error::RouteError;
use crate::metrics::Metrics;
use crate::view::View;

/// Images whose demand is remembered. They are caller input, so they are bounded; the least
/// recently used one starts again from nothing.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// How long a call waits for a runner when there is none.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
/// How long before its deadline such a call ends, so that its caller reads why and not only that
/// time is up.
const NO_RUNNER_MARGIN: Duration = Duration::from_millis(50);
/// Pause before runners are asked again that are ready and yet did not take a call: they reset its
/// stream.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Settings of the forwarding path.
#[derive(Debug)]
pub(crate) struct Options {
    /// `--default-image-prefix`.
    pub(crate) default_prefix: String,
    /// `--allowed-images`.
    pub(crate) allowed_images: AllowedImages,
    /// `--max-request-body-size` in bytes, for both directions.
    pub(crate) max_message: usize,
    /// `--router-count`: routers that share the runners.
    pub(crate) routers: usize,
}

/// The router's evaluator. State is per process and soft: losing it costs locality for seconds.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) options: Options,
    /// What calls of late went wrong here: those that the router failed, and attempts after which
    /// they moved on. A runner reports its own.
    pub(crate) failures: Failures,
    view: Arc<ArcSwap<View>>,
    /// Wakes calls that wait for a runner.
    changed: watch::Receiver<()>,
    demand: Mutex<LruCache<Arc<str>, Arc<Mutex<Demand>>>>,
    budget: Mutex<RetryBudget>,
    metrics: Arc<Metrics>,
    origin: Instant,
    hasher: RandomState,
}

/// How long a call had no runner to go to: before, and since when it waits now.
#[derive(Default)]
struct Waited(Duration, Option<Instant>);

impl Router {
    /// A router over whatever `view` holds. `changed` is sent to when a runner's health changes.
    pub(crate) fn new(
        options: Options,
        view: Arc<ArcSwap<View>>,
        changed: watch::Receiver<()>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            options,
            failures: Failures::default(),
            view,
            changed,
            demand: Mutex::new(LruCache::new(MAX_IMAGES)),
            budget: Mutex::default(),
            metrics,
            origin: Instant::now(),
            hasher: RandomState::new(),
        }
    }

    /// The shard keys of the images asked for lately and their calls in flight through this router,
    /// busiest first, at most `limit`.
    pub(crate) fn images(&self, limit: usize) -> Vec<(Arc<str>, usize)> {
        let load =
            |(key, demand): (&Arc<str>, &Arc<Mutex<Demand>>)| (Arc::clone(key), demand.lock().in_flight());
        let mut images: Vec<_> = self.demand.lock().iter().map(load).collect();
        images.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        images.truncate(limit);
        images
    }

    async fn route(&self, mut call: Call) -> Result<Reply, RouteError> {
        // Taken out: an inflated message is not needed any longer.
        let key = self.key(&call.take_message()).inspect_err(|error| self.note("", error))?;
        call.span.text(span::IMAGE, &key);
        self.route_to(&key, call).await.inspect_err(|error| self.note(&key, error))
    }

    fn note(&self, key: &str, error: &RouteError) {
        self.failures.note(key, "", code_name(error.code()), &error.to_string());
    }

    async fn route_to(&self, key: &str, mut call: Call) -> Result<Reply, RouteError> {
        call.charge.claim(key)?;
        self.budget.lock().deposit();
        let demand = self.demand_of(key);
        let estimate = demand.lock().start(self.origin.elapsed());
        let _counted = guard(demand, |demand| demand.lock().end(self.origin.elapsed()));
        let mut changed = self.changed.clone();
        let mut attempts = Attempts::new(self, key, &call, estimate);
        // Also counted when the call is dropped.
        let mut waited = guard(Waited::default(), |mut waited| {
            waited.end();
            if !waited.0.is_zero() {
                self.metrics.waited.observe(waited.0.as_secs_f64());
            }
        });
        loop {
            changed.mark_unchanged();
            if let Some(reply) = attempts.run().await? {
                return Ok(reply);
            }
            let give_up = *attempts.give_up.get_or_insert_with(|| give_up(call.deadline));
            let again = if self.view.load().usable().1 > 0 { Instant::now() + ASK_AGAIN } else { give_up };
            waited.1 = Some(Instant::now());
            let changed = timeout_at(again.min(give_up), changed.changed()).await;
            waited.end();
            // A closed channel: the router ends, and no runner comes any more.
            let closed = matches!(changed, Ok(Err(_)));
            if closed || (changed.is_err() && Instant::now() >= give_up) {
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

    fn demand_of(&self, key: &str) -> Arc<Mutex<Demand>> {
        let mut images = self.demand.lock();
        match images.get(key) {
            Some(demand) => Arc::clone(demand),
            None => Arc::clone(images.get_or_insert(key.into(), Arc::default)),
        }
    }
}

impl Evaluate for Router {
    async fn evaluate(&self, call: Call) -> Reply {
        let (began, deadline) = (Instant::now(), call.deadline);
        // Also counted when it is dropped: at its deadline, or because the caller is gone.
        let mut code = guard(None, |code| {
            let dropped = if Instant::now() < deadline { Code::Cancelled } else { Code::DeadlineExceeded };
            self.metrics.record_call(code.unwrap_or(dropped), began.elapsed());
        });
        let reply = self.route(call).await.unwrap_or_else(Reply::from);
        *code = Some(reply.code());
        reply
    }
}

impl Waited {
    fn end(&mut self) {
        self.0 += self.1.take().map_or(Duration::ZERO, |since| since.elapsed());
    }
}

/// When a call stops waiting for a runner.
fn give_up(deadline: Instant) -> Instant {
    let now = Instant::now();
    deadline.checked_sub(NO_RUNNER_MARGIN).unwrap_or(now).min(now + NO_RUNNER_WAIT)
}
