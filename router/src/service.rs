//! One call through the router: finds its image, makes attempts, and waits for a runner.

mod attempts;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_admin::failures::Failures;
use porch_fn_admin::function_metrics::is_failed;
use porch_fn_grpc::{Call, Evaluate, Reply, code_name};
use porch_fn_image::{AllowedImages, shard_key};
use porch_fn_numbers::{MAX_IMAGE_BYTES, Recorded, Recorder};
use porch_fn_proto::{Chunks, Peek, peek};
use porch_fn_ring::spill::Demand;
use porch_fn_telemetry::span;
use scopeguard::guard;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use self::attempts::Attempts;
use crate::budget::RetryBudget;
use crate::error::RouteError;
use crate::hints::Hints;
use crate::metrics::Metrics;
use crate::predict::{Predictor, Target};
use crate::view::View;

/// Maximum number of images whose demand is recorded. Callers choose the images, so the number is
/// bounded; the least recently used image is dropped.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// How long a call waits when no runner is available.
const NO_RUNNER_WAIT: Duration = Duration::from_secs(5);
/// A call that waits ends this long before its deadline, so that the caller receives the reason
/// instead of `DEADLINE_EXCEEDED`.
const NO_RUNNER_MARGIN: Duration = Duration::from_millis(50);
/// Pause before the next round of attempts when all ready runners reset the call's stream.
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
    /// With `--predict`.
    pub(crate) hints: Option<Hints>,
}

/// The router's evaluator. Its state is in memory only. After a restart, calls may reach other
/// runners than before for some seconds.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) options: Options,
    /// Recent failures of this router: its own errors, and failed attempts after which a call moved
    /// to another runner. Runners report their own failures.
    pub(crate) failures: Failures,
    view: Arc<ArcSwap<View>>,
    /// Wakes calls that wait for a runner.
    changed: watch::Receiver<()>,
    /// The shard keys of images, as the caller wrote them, that were called without a tag field.
    keys: Mutex<LruCache<String, Arc<str>>>,
    demand: Mutex<LruCache<Arc<str>, Arc<Mutex<Demand>>>>,
    budget: Mutex<RetryBudget>,
    metrics: Arc<Metrics>,
    numbers: Mutex<Recorder>,
    predictor: Mutex<Predictor>,
    origin: Instant,
}

/// A call for the metrics: its image, which is empty until it is known, and the code of its answer.
#[derive(Default)]
struct Ended {
    image: Arc<str>,
    code: Option<Code>,
}

/// How long a call waited for a runner: the sum of finished waits, and the start of the current
/// wait.
#[derive(Default)]
struct Waited(Duration, Option<Instant>);

impl Router {
    /// A router that reads the ring and the runners from `view`. `changed` is notified when calls
    /// that wait may find a runner.
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
            keys: Mutex::new(LruCache::new(MAX_IMAGES)),
            demand: Mutex::new(LruCache::new(MAX_IMAGES)),
            budget: Mutex::default(),
            metrics,
            numbers: Mutex::default(),
            predictor: Mutex::new(Predictor::new()),
            origin: Instant::now(),
        }
    }

    /// The shard keys of recently called images, each with its calls in flight through this router.
    /// The busiest come first; at most `limit` are returned.
    pub(crate) fn images(&self, limit: usize) -> Vec<(Arc<str>, usize)> {
        let load =
            |(key, demand): (&Arc<str>, &Arc<Mutex<Demand>>)| (Arc::clone(key), demand.lock().in_flight());
        let mut images: Vec<_> = self.demand.lock().iter().map(load).collect();
        images.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        images.truncate(limit);
        images
    }

    /// Calls, failures and durations by shard key. The empty key has the calls of all other images.
    pub(crate) fn recorded(&self) -> BTreeMap<Arc<str>, Recorded> {
        self.numbers.lock().recorded(self.origin.elapsed())
    }

    /// Routes a call, and stores its shard key in `key`.
    async fn route(&self, mut call: Call, key: &mut Arc<str>) -> Result<Reply, RouteError> {
        // Takes the message out of the call, so that the memory of a decompressed message is freed.
        let (found, peeked) = self.key(&call.take_message()).inspect_err(|error| self.note("", error))?;
        *key = found;
        call.span.text(span::IMAGE, key);
        let size = peeked.resource_list.len();
        self.predict(key, peeked);
        let routed = self.route_to(key, call).await.inspect_err(|error| self.note(key, error));
        if let (Some(_), Ok(reply)) = (&self.options.hints, &routed)
            && reply.code() == Code::Ok
        {
            self.predictor.lock().answered(key, size, reply.framed.len(), self.origin.elapsed());
        }
        routed
    }

    /// Sends hints to the owners of the images that will probably follow this call.
    fn predict(&self, key: &Arc<str>, Peek { image, tag, resource_list }: Peek) {
        let Some(hints) = &self.options.hints else { return };
        if image.len() + tag.len() > MAX_IMAGE_BYTES {
            return;
        }
        let target = Target { key: Arc::clone(key), image, tag };
        let likely = self.predictor.lock().call(target, resource_list.len(), self.origin.elapsed());
        for target in likely {
            // A full queue drops the hint: the pod then starts with the call.
            let _ = hints.try_send(target);
        }
    }

    fn record_call(&self, image: &str, code: Code, took: Duration) {
        self.numbers.lock().record(image, self.origin.elapsed(), took, is_failed(code));
        self.metrics.record_call(image, code, took);
    }

    fn note(&self, key: &str, error: &RouteError) {
        self.failures.note(key, "", code_name(error.code()), &error.to_string());
    }

    async fn route_to(&self, key: &Arc<str>, mut call: Call) -> Result<Reply, RouteError> {
        call.charge.claim(key)?;
        self.budget.lock().deposit();
        let demand = self.demand_of(key);
        let estimate = demand.lock().start(self.origin.elapsed());
        let _counted = guard(demand, |demand| demand.lock().end(self.origin.elapsed()));
        let mut changed = self.changed.clone();
        let mut attempts = Attempts::new(self, key, &call, estimate);
        // The guard also records the wait when the call is dropped.
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
            // A closed channel means that the router is shutting down.
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

    /// Returns the shard key of the request's image, if the image is allowed, and the request's
    /// fields.
    fn key(&self, message: &Chunks) -> Result<(Arc<str>, Peek), RouteError> {
        let peeked = peek(message)?;
        let Peek { image, tag, .. } = &peeked;
        if image.is_empty() {
            return Err(RouteError::NoImage);
        }
        if tag.is_empty()
            && let Some(key) = self.keys.lock().get(image)
        {
            return Ok((Arc::clone(key), peeked));
        }
        self.options.allowed_images.check(image, tag)?;
        let key = Arc::<str>::from(shard_key(image, tag, &self.options.default_prefix));
        if tag.is_empty() && image.len() <= MAX_IMAGE_BYTES {
            self.keys.lock().put(image.clone(), Arc::clone(&key));
        }
        Ok((key, peeked))
    }

    fn demand_of(&self, key: &Arc<str>) -> Arc<Mutex<Demand>> {
        Arc::clone(self.demand.lock().get_or_insert(Arc::clone(key), Arc::default))
    }
}

impl Evaluate for Router {
    async fn evaluate(&self, call: Call) -> Reply {
        let (began, deadline) = (Instant::now(), call.deadline);
        // The guard also counts a call that is dropped, at its deadline or because the caller has
        // disconnected.
        let mut ended = guard(Ended::default(), |Ended { image, code }| {
            let dropped = if Instant::now() < deadline { Code::Cancelled } else { Code::DeadlineExceeded };
            self.record_call(&image, code.unwrap_or(dropped), began.elapsed());
        });
        let reply = self.route(call, &mut ended.image).await.unwrap_or_else(Reply::from);
        ended.code = Some(reply.code());
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
