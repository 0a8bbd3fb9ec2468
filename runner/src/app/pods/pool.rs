//! Wires the pool itself: its configuration, what it warms up, its metrics.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::{Config, Event};
use porch_fn_settings::Resolved;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::PodWiring;
use crate::metrics::Metrics;
use crate::pods::configure::{self, Making, WarmUp, ranges};
use crate::pods::{Backend, Catalog, Handle, PodRuntime};
use crate::settings::Current;

/// How often the pool is counted, which is a walk over all functions.
const SHOW_POOL_EVERY: Duration = Duration::from_secs(3);

/// The way to a pool that is not made yet.
pub(super) struct ToPool {
    pub(super) events: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
    /// Turns true when the pool has been told of complete settings.
    pub(super) configured: watch::Sender<bool>,
}

impl ToPool {
    pub(super) fn new() -> Self {
        let (events, receiver) = mpsc::unbounded_channel();
        Self { events, receiver, configured: watch::Sender::new(false) }
    }
}

impl PodWiring<'_> {
    /// The runtime over `backend`, with the tasks that drive it and keep its configuration up to
    /// date.
    pub(super) fn runtime(
        &mut self,
        base: Config,
        mut making: impl Making,
        backend: impl Backend,
        ToPool { events, receiver, configured }: ToPool,
        catalog: Arc<dyn Catalog>,
        current: &watch::Receiver<Current>,
    ) -> PodRuntime {
        let flags = self.flags;
        let mut warm_up = flags.warm_up_pod_cache.then(|| WarmUp::new(Arc::clone(&catalog)));
        let (sender, resolved) = watch::channel(Resolved::default());
        let find = ranges::follow(current.clone(), Arc::clone(&catalog), flags.warm_up_pod_cache, sender);
        self.tasks.keep(tracing::info_span!("warm-up"), find);
        let mut current = current.clone();
        let first = current.borrow_and_update().clone();
        let known = Resolved::default();
        let config = configure::config(&base, &first.settings, &known, making.made_from(&first));
        let (runtime, driver) = PodRuntime::new(
            config,
            backend,
            receiver,
            catalog,
            flags.default_image_prefix.clone(),
            flags.max_request_body_size,
            Arc::clone(self.metrics),
        );
        let runtime = runtime.with_max_retries(flags.max_grpc_retries);
        self.tasks.keep(tracing::info_span!("pool"), driver);
        let show = show_pool(runtime.pool(), Arc::clone(self.metrics));
        self.tasks.keep(tracing::info_span!("pool metrics"), show);
        configure::told(&first, &known, &mut warm_up, &configured, &events);
        let follow = configure::follow(base, making, current, resolved, warm_up, configured, events);
        self.tasks.keep(tracing::info_span!("configuration"), follow);
        runtime
    }
}

/// Keeps the metrics in step with the pool, for as long as it is not dropped.
async fn show_pool(pool: Handle, metrics: Arc<Metrics>) {
    let mut ticks = interval(SHOW_POOL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.pool(&pool.stats().await);
    }
}
