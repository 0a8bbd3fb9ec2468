//! Runs the pool, because the pool itself has no I/O: passes events and the time to the pool, and
//! executes the pool's actions. A call steps the pool itself, under a lock that is never held across
//! an await. So a call with a warm pod waits for no other task. One task, [`Driver::run`], passes
//! the backend's events and the timers. `runner/pool/src/lib.rs` explains the pool's rules and
//! terms, such as push.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{
    Action, Config, DeleteReason, Event, FunctionStats, ImageKey, PodStats, Pool, RequestId, ShardKey, Time,
    Uid, Verdict,
};
use porch_fn_proto::Chunks;
use porch_fn_proto::shard::{ImagePod, ImagePods};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::Span;

use crate::clock::now_ahead;
use crate::metrics::Metrics;
use crate::pods::backend::{Backend, PodFacts};
use crate::pods::error::PodError;
use crate::pods::executor::Executor;
use crate::pods::starts::{Phases, Starts};

/// The two ends of the channel to a pool.
pub(crate) type Events = (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>);

type Answer = oneshot::Sender<Result<Granted, PodError>>;

/// What a call gets.
type Granted = (Arc<Connection>, Option<Phases>);

/// Access to the pool, for calls and reports.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Shared>);

/// What the driver's task and the handles share.
struct Shared {
    /// `None` after the task has ended. Events that a backend sends while it acts go to the task's
    /// channel, so nothing locks this twice.
    state: Mutex<Option<State>>,
    /// Wakes the task if it must wake earlier than it planned.
    earlier: Notify,
}

/// A call's request for a pod, waiting or granted. A lease dropped without [`finish`](Self::finish)
/// reports to the pool that the caller disconnected or that the call missed its deadline.
pub(crate) struct Lease {
    id: RequestId,
    pool: Handle,
    finished: bool,
    /// The message that the pod runs, and the call's deadline.
    running: Option<(Chunks, Instant)>,
    /// The start of the pod, if the call waited for its end.
    pub(crate) started: Option<Phases>,
}

/// The most pods in one report.
const MAX_PODS: usize = 100;
/// How often the pool's metrics are updated. Each update iterates over all functions.
const COUNT_EVERY: Duration = Duration::from_secs(3);
/// A call dropped within this time before its deadline counts as late. The caller has the same
/// deadline and may cancel slightly earlier.
const EARLY: Duration = Duration::from_millis(100);

// === impl Handle ===

impl Handle {
    /// Waits until `deadline` for a pod of `image`. The call may use the pod until the lease is
    /// dropped. Dropping the future cancels the request. `running` is the message that the pod will
    /// run, and the call's deadline. A call that misses its deadline may have a broken pod.
    ///
    /// # Errors
    /// If the call gets no pod.
    pub(crate) async fn acquire(
        &self,
        image: ImageKey,
        shard_key: ShardKey,
        deadline: Instant,
        running: (Chunks, Instant),
    ) -> Result<(Arc<Connection>, Lease), PodError> {
        let (answer, granted) = oneshot::channel();
        let id = self.with(|state| state.request(image, shard_key, deadline, answer));
        let id = id.ok_or(PodError::Stopped)?;
        let mut lease = Lease { id, pool: self.clone(), finished: false, running: None, started: None };
        let granted = granted.await.map_err(|_| PodError::Stopped)?;
        // After an error, the lease has nothing to report to the pool. The pool has already removed
        // a rejected call, and the driver has already finished a call whose pod vanished.
        lease.finished = granted.is_err();
        lease.running = Some(running);
        let (connection, started) = granted?;
        lease.started = started;
        Ok((connection, lease))
    }

    /// Starts a pod of `image`, if this runner owns the image and the image has no pod.
    pub(crate) fn warm_up(&self, image: ImageKey, shard_key: ShardKey) {
        self.with(|state| state.step(Event::Warm { image, shard_key }));
    }

    /// Returns the pool's statistics per function.
    pub(crate) fn stats(&self) -> Vec<FunctionStats> {
        self.with(|state| state.pool.stats()).unwrap_or_default()
    }

    /// Returns the images that have pods of this runner.
    pub(crate) fn owned_images(&self) -> Vec<ImageKey> {
        self.with(|state| state.pool.owned_images()).unwrap_or_default()
    }

    /// Returns the last start of each image's pods in the last hour.
    pub(crate) fn last_starts(&self) -> HashMap<ImageKey, ImagePods> {
        self.with(|state| state.starts.errors.all(state.clock.now())).unwrap_or_default()
    }

    /// Returns the pods of an image, at most [`MAX_PODS`]. `image` is its canonical reference, or
    /// the shard key of the pods.
    pub(crate) fn pods(&self, image: &str) -> Vec<ImagePod> {
        self.with(|state| state.pods(image)).unwrap_or_default()
    }

    /// Runs `act` on the state. Returns `None` after the task has ended.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.0.state.lock();
        let state = state.as_mut()?;
        let result = act(state);
        if state.wakes_too_late() {
            self.0.earlier.notify_one();
        }
        Some(result)
    }
}

// === impl Lease ===

impl Lease {
    /// Returns the pod to the pool, with the call's verdict on the pod.
    pub(crate) fn finish(mut self, verdict: Verdict) {
        self.finished = true;
        self.pool.with(|state| state.step(Event::Finished { id: self.id, verdict }));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let id = self.id;
        let event = match &self.running {
            Some((message, deadline)) if *deadline <= Instant::now() + EARLY => {
                Event::Finished { id, verdict: Verdict::Late { package: hash(message) } }
            }
            _ => Event::Cancel(id),
        };
        self.pool.with(|state| {
            state.waiting.remove(&id);
            state.step(event);
        });
    }
}

fn hash(message: &Chunks) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.parts().iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// The task that passes the backend's events and the timers to the pool.
pub(crate) struct Driver {
    handle: Handle,
    events: mpsc::UnboundedReceiver<Event>,
}

/// The pool, and what its actions act on.
struct State {
    pool: Pool,
    executor: Executor,
    last_id: u64,
    waiting: HashMap<RequestId, (ImageKey, Answer)>,
    /// When the task plans to wake, if nothing happens.
    wakes_at: Option<Time>,
    clock: Clock,
    metrics: Arc<Metrics>,
    starts: Starts,
    /// Log lines of the pool are the same, whether a call or the task steps it.
    span: Span,
}

// === impl Driver ===

impl Driver {
    /// Creates a driver with an empty pool over `backend`. On Kubernetes, timestamps in pods
    /// follow the API server's clock, which is `clock_ahead` of this machine's clock.
    pub(crate) fn new(
        config: Config,
        backend: Arc<dyn Backend>,
        clock_ahead: SignedDuration,
        (sender, events): Events,
        metrics: Arc<Metrics>,
    ) -> (Self, Handle) {
        let state = State {
            clock: Clock { origin: Instant::now(), origin_time: now_ahead(clock_ahead) },
            pool: Pool::new(config),
            executor: Executor::new(backend, sender),
            last_id: 0,
            waiting: HashMap::new(),
            wakes_at: None,
            starts: Starts::new(Arc::clone(&metrics)),
            metrics,
            span: tracing::info_span!(parent: None, "pool"),
        };
        let handle = Handle(Arc::new(Shared { state: Mutex::new(Some(state)), earlier: Notify::new() }));
        (Self { handle: handle.clone(), events }, handle)
    }

    /// Runs until the task is dropped. Then waiting calls end, and new calls get no pod.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(COUNT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let timer = self.handle.with(State::plan).flatten();
            // The sources need no priority: the pool accepts events in any order.
            let event = tokio::select! {
                Some(event) = self.events.recv() => event,
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => Event::Tick,
                () = self.handle.0.earlier.notified() => continue,
                _ = ticks.tick() => {
                    self.handle.with(|state| state.metrics.pool(&state.pool.stats()));
                    continue;
                }
            };
            self.handle.with(|state| state.step(event));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The state is dropped after the lock is released: its backend may use locks of its own.
        let state = self.handle.0.state.lock().take();
        drop(state);
    }
}

// === impl State ===

impl State {
    fn request(
        &mut self,
        image: ImageKey,
        shard_key: ShardKey,
        deadline: Instant,
        answer: Answer,
    ) -> RequestId {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.waiting.insert(id, (image.clone(), answer));
        self.step(Event::Request { id, image, shard_key, deadline: self.clock.time(deadline) });
        id
    }

    /// Returns when the task must wake if nothing happens.
    fn plan(&mut self) -> Option<Instant> {
        self.wakes_at = self.pool.next_timer();
        self.wakes_at.map(|due| self.clock.instant(due))
    }

    fn wakes_too_late(&self) -> bool {
        let is_earlier = |next| self.wakes_at.is_none_or(|planned| next < planned);
        self.pool.next_timer().is_some_and(is_earlier)
    }

    fn pods(&self, image: &str) -> Vec<ImagePod> {
        let (pods, now) = (self.pool.pods(image, MAX_PODS), self.clock.now());
        pods.iter().map(|pod| image_pod(pod, self.executor.backend.facts(&pod.uid), now)).collect()
    }

    fn step(&mut self, event: Event) {
        let span = self.span.clone();
        let _entered = span.enter();
        tracing::trace!(?event, "pool event");
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now = self.clock.now();
            let backend = &self.executor.backend;
            let started = self.starts.event(&event, now, &|uid| backend.facts(uid));
            for action in self.pool.step(event, now) {
                tracing::trace!(?action, "pool action");
                events.extend(self.act(action, started.as_ref()));
            }
        }
    }

    /// Executes one action. Returns the event that the pool must process next, if there is one.
    /// `started` is the start that the action follows.
    fn act(&mut self, action: Action, started: Option<&Phases>) -> Option<Event> {
        match &action {
            Action::Grant { id, uid } => return self.grant(*id, uid, started),
            Action::Reject { id, error } => {
                // If there is no entry, the caller has disconnected and its lease sends `Cancel`.
                if let Some((image, answer)) = self.waiting.remove(id) {
                    self.starts.reject(&image, error, self.clock.now());
                    let _ = answer.send(Err(error.clone().into()));
                }
                return None;
            }
            Action::Create { name, .. } => {
                tracing::info!(image = %name.image, slot = name.slot, "creating pod");
                self.metrics.pool_action("create");
                self.starts.create(name.clone(), self.clock.now());
            }
            Action::Delete { uid, name, reason, .. } => {
                tracing::info!(image = %name.image, slot = name.slot, ?reason, "deleting pod");
                self.metrics.pool_action(match reason {
                    DeleteReason::Failed => "delete failed",
                    DeleteReason::Hung => "delete hung",
                    DeleteReason::Expired => "delete expired",
                    DeleteReason::Replaced => "delete replaced",
                    DeleteReason::Surplus => "delete surplus",
                    DeleteReason::Evicted => "delete evicted",
                });
                let backend = &self.executor.backend;
                self.starts.delete(uid, *reason, self.clock.now(), &|uid| backend.facts(uid));
            }
            Action::Push { .. } => self.metrics.pool_action("push"),
            Action::Disconnect { name, .. } => {
                tracing::warn!(
                    image = %name.image, slot = name.slot,
                    "a function pod no longer answers: its calls move to other pods, and a new pod replaces it"
                );
                self.metrics.pods_hung.inc();
            }
            Action::Check { .. } | Action::Probe { .. } => {}
        }
        self.executor.act(action);
        None
    }

    fn grant(&mut self, id: RequestId, uid: &Uid, started: Option<&Phases>) -> Option<Event> {
        // If there is no entry, the caller has cancelled, and the pool gets its `Cancel`.
        let (image, answer) = self.waiting.remove(&id)?;
        let Some(connection) = self.executor.backend.connection(uid) else {
            let _ = answer.send(Err(PodError::Vanished));
            return Some(Event::Finished { id, verdict: Verdict::Broken });
        };
        self.starts.errors.record_served(&image);
        let _ = answer.send(Ok((connection, started.cloned())));
        None
    }
}

/// One pod, for reports.
pub(super) fn image_pod(pod: &PodStats, facts: Option<PodFacts>, now: Time) -> ImagePod {
    let created = facts.as_ref().and_then(|facts| facts.created);
    ImagePod {
        name: facts.map_or_else(|| pod.uid.to_string(), |facts| facts.name),
        state: pod.state.to_owned(),
        age_ms: created.map_or(0, |created| now.as_millis().saturating_sub(created.as_millis())),
        calls: number(pod.calls),
    }
}

/// A count, for reports.
pub(crate) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The pool's wall clock. It advances with tokio's clock: tests can pause it, and a jump of the
/// system clock cannot expire deadlines.
#[derive(Debug, Clone, Copy)]
struct Clock {
    origin: Instant,
    origin_time: Time,
}

impl Clock {
    fn now(&self) -> Time {
        self.time(Instant::now())
    }

    fn time(&self, instant: Instant) -> Time {
        self.origin_time + instant.saturating_duration_since(self.origin)
    }

    /// Rounds up: a timer must not fire before its time.
    fn instant(&self, time: Time) -> Instant {
        self.origin + time.since(self.origin_time) + Duration::from_millis(1)
    }
}
