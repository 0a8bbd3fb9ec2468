//! One call through the router: image, attempts, waiting for a runner.

mod attempts;

use std::hash::RandomState;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_admin::failures::{Failure as Failed, Failures};
use porch_fn_grpc::{Call, Evaluate, Reply, code_name};
use porch_fn_image::{AllowedImages, shard_key};
use porch_fn_proto::{Chunks, peek};
use porch_fn_ring::spill::{Demand, Spill};
use porch_fn_telemetry::span;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use self::attempts::Attempts;
use crate::budget::RetryBudget;
use crate::error::RouteError;
use crate::metrics::Metrics;
use crate::view::View;

/// Images whose demand is remembered. They are caller input, so they are bounded; the least recently
/// used one starts again from nothing.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// How long a call waits for a runner when there is none.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
/// How long before its deadline such a call ends, so that its caller reads why and not only that time is up.
const NO_RUNNER_MARGIN: Duration = Duration::from_millis(50);
/// Pause before runners are asked again that are ready and yet did not take a call: they reset its stream.
const ASK_AGAIN: Duration = Duration::from_millis(100);

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
    demand: Mutex<LruCache<Arc<str>, Entry>>,
    /// Entries made so far.
    entries: AtomicU64,
    budget: Mutex<RetryBudget>,
    metrics: Arc<Metrics>,
    failures: Failures,
    origin: Instant,
    hasher: RandomState,
}

/// The demand for one image.
#[derive(Debug, Default)]
struct Entry {
    demand: Demand,
    /// Tells it from one that was there before and was forgotten.
    number: u64,
}

/// An image that was asked for lately.
#[derive(Debug, Clone)]
pub(crate) struct ImageLoad {
    /// Its shard key.
    pub(crate) key: Arc<str>,
    /// Its calls in flight through this router.
    pub(crate) in_flight: usize,
}

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
            view,
            changed,
            demand: Mutex::new(LruCache::new(MAX_IMAGES)),
            entries: AtomicU64::default(),
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
        let load = |(key, entry): (&Arc<str>, &Entry)| ImageLoad {
            key: Arc::clone(key),
            in_flight: entry.demand.in_flight(),
        };
        let mut images: Vec<_> = self.demand.lock().iter().map(load).collect();
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
        call.span.text(span::IMAGE, &key);
        self.route_to(&key, call).await.inspect_err(|error| self.failed(&key, error))
    }

    fn failed(&self, key: &str, error: &RouteError) {
        self.failures.note(key, "", code_name(error.code()), &error.to_string());
    }

    async fn route_to(&self, key: &str, mut call: Call) -> Result<Reply, RouteError> {
        call.charge.claim(key)?;
        let load = self.enter(key);
        let mut changed = self.changed.clone();
        let mut attempts = Attempts::default();
        let mut waited = Waited { metrics: &self.metrics, before: Duration::ZERO, since: None };
        loop {
            changed.mark_unchanged();
            if let Some(reply) = self.attempt_all(key, &call, load.estimate, &mut attempts).await? {
                return Ok(reply);
            }
            // A runner that sheds load is healthy: its refusal is the answer when nobody else takes the call.
            if let Some(reply) = attempts.take_refusal()? {
                return Ok(reply);
            }
            let give_up = *attempts.give_up.get_or_insert_with(|| give_up(call.deadline));
            let again = if self.view.load().usable().1 > 0 { Instant::now() + ASK_AGAIN } else { give_up };
            waited.since = Some(Instant::now());
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

    /// Counts the call in, and says how busy its image was before it.
    fn enter<'a>(&'a self, key: &'a str) -> Load<'a> {
        self.budget.lock().deposit();
        let now = self.origin.elapsed();
        let mut images = self.demand.lock();
        let new = || Entry { number: self.entries.fetch_add(1, Ordering::Relaxed), ..Entry::default() };
        let entry = match images.get_mut(key) {
            Some(entry) => entry,
            None => images.get_or_insert_mut(Arc::from(key), new),
        };
        let estimate = entry.demand.estimate(now);
        entry.demand.add(now);
        Load { router: self, key, entry: entry.number, estimate }
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
    entry: u64,
    estimate: f64,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let mut images = self.router.demand.lock();
        let entry = images.peek_mut(self.key).filter(|entry| entry.number == self.entry);
        if let Some(entry) = entry {
            entry.demand.sub(self.router.origin.elapsed());
        }
    }
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

/// When a call stops waiting for a runner.
fn give_up(deadline: Instant) -> Instant {
    let now = Instant::now();
    deadline.checked_sub(NO_RUNNER_MARGIN).unwrap_or(now).min(now + NO_RUNNER_WAIT)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use porch_fn_grpc::{Charge, Hop, Inflight, message_of};
    use porch_fn_ring::Ring;
    use prometheus_client::registry::Registry;

    use super::*;

    /// A router without runners, and what would tell it of some.
    fn router() -> (Router, watch::Sender<()>) {
        let view = Arc::new(ArcSwap::from_pointee(View::new(Ring::new([]).unwrap(), Vec::new())));
        let (changed, heard) = watch::channel(());
        let metrics = Metrics::new(&mut Registry::default(), &Inflight::new(1 << 20, Hop::Router));
        let options = Options {
            default_prefix: String::new(),
            allowed_images: AllowedImages::default(),
            max_message: 1 << 20,
            spill: Spill::default(),
        };
        (Router::new(options, view, heard, Arc::new(metrics)), changed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_counter_that_was_forgotten_and_came_back_counts_its_own_calls() {
        let (router, _changed) = router();
        let in_flight = || router.images(1).first().map(|image| (image.key.to_string(), image.in_flight));
        let first = router.enter("a");
        for other in 0..MAX_IMAGES.get() {
            drop(router.enter(&other.to_string()));
        }
        let second = router.enter("a");
        assert_eq!(in_flight(), Some(("a".to_owned(), 1)));
        drop(first);
        assert_eq!(in_flight(), Some(("a".to_owned(), 1)));
        drop(second);
        assert_eq!(in_flight().map(|(_, in_flight)| in_flight), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_router_that_ends_has_no_call_wait_for_a_runner() {
        let (router, changed) = router();
        let now = Instant::now();
        let call = || Call {
            headers: HeaderMap::new(),
            framed: Chunks::default(),
            message: Chunks::default(),
            deadline: now + Duration::from_hours(1),
            charge: Charge::default(),
            span: span::Span::default(),
            place: None,
        };
        let text = |reply: Reply| message_of(reply.status_headers());
        let none = "no function runner is ready: 0 runners known";
        let waits = router.route_to("a", call()).await.unwrap_err();
        assert_eq!((now.elapsed(), text(waits.into()).starts_with(none)), (NO_RUNNER_WAIT, true));
        drop(changed);
        let ends = router.route_to("a", call()).await.unwrap_err();
        assert_eq!((now.elapsed(), text(ends.into()).starts_with(none)), (NO_RUNNER_WAIT, true));
    }
}
