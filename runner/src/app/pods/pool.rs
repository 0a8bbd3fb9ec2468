//! Wires the pool itself: its configuration, what it warms up, its metrics.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::{Event, OwnedShards};
use porch_fn_settings::Resolved;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::PodWiring;
use crate::metrics::Metrics;
use crate::pods::configure::{Desired, Origins, WarmUp, ranges};
use crate::pods::{Backend, Catalog, Handle, PodRuntime};
use crate::settings::CurrentSettings;

/// How often the pool is counted, which is a walk over all functions.
const SHOW_POOL_EVERY: Duration = Duration::from_secs(3);

/// The channel to a pool that is not made yet.
pub(super) struct ToPool {
    pub(super) events: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

impl ToPool {
    /// The first event is that nothing is owned, before the pool knows any pod.
    pub(super) fn new() -> Self {
        let (events, receiver) = mpsc::unbounded_channel();
        // Cannot fail: the receiver is here.
        let _ = events.send(Event::Own(OwnedShards::None));
        Self { events, receiver }
    }
}

impl PodWiring<'_> {
    /// The runtime over `backend`, with the tasks that drive it and keep its configuration up to
    /// date.
    pub(super) fn runtime(
        &mut self,
        mut desired: Desired<impl Origins>,
        backend: impl Backend,
        ToPool { events, receiver }: ToPool,
        catalog: Arc<dyn Catalog>,
        current: &watch::Receiver<CurrentSettings>,
    ) -> PodRuntime {
        let flags = self.flags;
        desired.warm_up = flags.warm_up_pod_cache.then(|| WarmUp::new(Arc::clone(&catalog)));
        let (sender, resolved) = watch::channel(Resolved::default());
        let find = ranges::follow(current.clone(), Arc::clone(&catalog), flags.warm_up_pod_cache, sender);
        self.tasks.keep(tracing::info_span!("warm-up"), find);
        let (runtime, driver) = PodRuntime::new(
            desired.config(&current.borrow(), &Resolved::default()),
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
        let follow = desired.follow(current.clone(), resolved, events);
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
