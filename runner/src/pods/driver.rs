//! The actor around the pool, because the pool itself has no I/O. One task owns the pool, passes
//! events and the time to the pool, and executes the pool's actions. Calls reach the task through
//! [`Handle`]. `runner/pool/src/lib.rs` explains the pool's rules and terms, such as push.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{
    Action, Config, DeleteReason, Event, FunctionStats, ImageKey, PodState, Pool, RequestId, ShardKey, Time,
    Uid, Verdict,
};
use porch_fn_proto::Chunks;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::clock::now_ahead;
use crate::metrics::Metrics;
use crate::pods::backend::Backend;
use crate::pods::error::PodError;
use crate::pods::start_errors::LastStart;
use crate::pods::starts::Starts;

/// Messages to the driver from calls and from startup code.
#[derive(Debug)]
enum Command {
    Request { id: RequestId, image: ImageKey, shard_key: ShardKey, deadline: Instant, answer: Answer },
    Event(Event),
    Stats(oneshot::Sender<Vec<FunctionStats>>),
    LastStarts(oneshot::Sender<HashMap<ImageKey, LastStart>>),
    Pods { image: String, answer: oneshot::Sender<Vec<PodReport>> },
}

/// One pod, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodReport {
    pub(crate) name: String,
    pub(crate) state: PodState,
    /// Time since its creation; zero if that is not known.
    pub(crate) age: Duration,
    /// This runner's calls that run in the pod.
    pub(crate) calls: usize,
}

type Answer = oneshot::Sender<Result<Arc<Connection>, PodError>>;

/// Sends commands to the driver. The channel is unbounded because dropping a call must never wait.
/// The calls in flight limit its length: each call sends two commands per pod that it tries.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicU64>,
}

/// A call's request for a pod, waiting or granted. A lease dropped without [`finish`](Self::finish)
/// reports to the pool that the caller disconnected or that the call missed its deadline.
#[derive(Debug)]
pub(crate) struct Lease {
    id: RequestId,
    commands: mpsc::UnboundedSender<Command>,
    finished: bool,
    /// The message that the pod runs, and the call's deadline.
    running: Option<(Chunks, Instant)>,
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
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (answer, granted) = oneshot::channel();
        let mut lease = Lease { id, commands: self.commands.clone(), finished: false, running: None };
        let request = Command::Request { id, image, shard_key, deadline, answer };
        self.commands.send(request).map_err(|_| PodError::Stopped)?;
        let granted = granted.await.map_err(|_| PodError::Stopped)?;
        // After an error, the lease has nothing to report to the pool. The pool has already removed
        // a rejected call, and the driver has already finished a call whose pod vanished.
        lease.finished = granted.is_err();
        lease.running = Some(running);
        Ok((granted?, lease))
    }

    /// Returns the pool's statistics per function.
    pub(crate) async fn stats(&self) -> Vec<FunctionStats> {
        let (answer, stats) = oneshot::channel();
        let _ = self.commands.send(Command::Stats(answer));
        stats.await.unwrap_or_default()
    }

    /// Returns the last start of each image's pods in the last hour.
    pub(crate) async fn last_starts(&self) -> HashMap<ImageKey, LastStart> {
        let (answer, starts) = oneshot::channel();
        let _ = self.commands.send(Command::LastStarts(answer));
        starts.await.unwrap_or_default()
    }

    /// Returns the pods of an image, at most [`MAX_PODS`]. `image` is its canonical reference, or
    /// the shard key of the pods.
    pub(crate) async fn pods(&self, image: String) -> Vec<PodReport> {
        let (answer, pods) = oneshot::channel();
        let _ = self.commands.send(Command::Pods { image, answer });
        pods.await.unwrap_or_default()
    }
}

// === impl Lease ===

impl Lease {
    /// Returns the pod to the pool, with the call's verdict on the pod.
    pub(crate) fn finish(mut self, verdict: Verdict) {
        self.finished = true;
        let _ = self.commands.send(Command::Event(Event::Finished { id: self.id, verdict }));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let id = self.id;
        let _ = self.commands.send(Command::Event(match &self.running {
            Some((message, deadline)) if *deadline <= Instant::now() + EARLY => {
                Event::Finished { id, verdict: Verdict::Late { package: hash(message) } }
            }
            _ => Event::Cancel(id),
        }));
    }
}

fn hash(message: &Chunks) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.parts().iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// Owns the pool and runs as one task.
pub(crate) struct Driver<B> {
    pool: Pool,
    backend: B,
    events: mpsc::UnboundedReceiver<Event>,
    commands: mpsc::UnboundedReceiver<Command>,
    waiting: HashMap<RequestId, (ImageKey, Answer)>,
    clock: Clock,
    metrics: Arc<Metrics>,
    starts: Starts,
}

// === impl Driver ===

impl<B: Backend> Driver<B> {
    /// Creates a driver with an empty pool over `backend`. On Kubernetes, timestamps in pods
    /// follow the API server's clock, which is `clock_ahead` of this machine's clock.
    pub(crate) fn new(
        config: Config,
        backend: B,
        clock_ahead: SignedDuration,
        events: mpsc::UnboundedReceiver<Event>,
        metrics: Arc<Metrics>,
    ) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let driver = Self {
            clock: Clock { origin: Instant::now(), origin_time: now_ahead(clock_ahead) },
            pool: Pool::new(config),
            backend,
            events,
            commands,
            waiting: HashMap::new(),
            starts: Starts::new(Arc::clone(&metrics)),
            metrics,
        };
        (driver, Handle { commands: sender, next_id: Arc::default() })
    }

    /// Runs until every handle is gone.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(COUNT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let timer = self.pool.next_timer().map(|due| self.clock.instant(due));
            // The sources need no priority: the pool accepts events in any order.
            let event = tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some(event) = self.events.recv() => Some(event),
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => Some(Event::Tick),
                _ = ticks.tick() => {
                    self.metrics.pool(&self.pool.stats());
                    None
                }
            };
            if let Some(event) = event {
                self.step(event);
            }
        }
    }

    fn command(&mut self, command: Command) -> Option<Event> {
        Some(match command {
            Command::Request { id, image, shard_key, deadline, answer } => {
                self.waiting.insert(id, (image.clone(), answer));
                Event::Request { id, image, shard_key, deadline: self.clock.time(deadline) }
            }
            Command::Event(event) => {
                if let Event::Cancel(id) = &event {
                    self.waiting.remove(id);
                }
                event
            }
            Command::Stats(answer) => {
                let _ = answer.send(self.pool.stats());
                return None;
            }
            Command::LastStarts(answer) => {
                let _ = answer.send(self.starts.last(self.clock.now()));
                return None;
            }
            Command::Pods { image, answer } => {
                let _ = answer.send(self.pods(&image));
                return None;
            }
        })
    }

    fn pods(&self, image: &str) -> Vec<PodReport> {
        let now = self.clock.now();
        let pods = self.pool.pods(image, MAX_PODS).into_iter().map(|pod| {
            let facts = self.backend.facts(&pod.uid);
            let created = facts.as_ref().and_then(|facts| facts.created);
            PodReport {
                name: facts.map_or_else(|| pod.uid.to_string(), |facts| facts.name),
                state: pod.state,
                age: created.map_or(Duration::ZERO, |created| now.since(created)),
                calls: pod.calls,
            }
        });
        pods.collect()
    }

    fn step(&mut self, event: Event) {
        tracing::trace!(?event, "pool event");
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now = self.clock.now();
            let backend = &self.backend;
            self.starts.event(&event, now, &|uid| backend.facts(uid));
            for action in self.pool.step(event, now) {
                tracing::trace!(?action, "pool action");
                events.extend(self.act(action));
            }
        }
    }

    /// Executes one action. Returns the event that the pool must process next, if there is one.
    fn act(&mut self, action: Action) -> Option<Event> {
        match &action {
            Action::Grant { id, uid } => return self.grant(*id, uid),
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
                let backend = &self.backend;
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
        self.backend.act(action);
        None
    }

    fn grant(&mut self, id: RequestId, uid: &Uid) -> Option<Event> {
        // If there is no entry, the caller has cancelled, and the pool gets its `Cancel`.
        let (image, answer) = self.waiting.remove(&id)?;
        let Some(connection) = self.backend.connection(uid) else {
            let _ = answer.send(Err(PodError::Vanished));
            return Some(Event::Finished { id, verdict: Verdict::Broken });
        };
        self.starts.grant(&image);
        let _ = answer.send(Ok(connection));
        None
    }
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
