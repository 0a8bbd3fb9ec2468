//! One runner as the router knows it: its connection, its load and whether it may be picked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::{self, AddressError, Connection};
use porch_fn_ring::Identity;
use porch_fn_tls::Connector;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::health::{CallFailure, HealthState, Observation, RunnerHealth};

/// Calls in flight and no answer for this long: functions may be slow, or the runner may have stalled.
const QUIET: Duration = Duration::from_secs(3);
/// A reported load counts for this long.
const LOAD_HOLDS: Duration = Duration::from_secs(5);

/// A runner. Shared by all calls; everything in it is atomic or held under a lock for nanoseconds.
#[derive(Debug)]
pub(crate) struct Runner {
    identity: Identity,
    connection: Arc<Connection>,
    /// Discovery lists it.
    listed: AtomicBool,
    /// It has reported its load since it became reachable. Older versions do not.
    reports_load: AtomicBool,
    in_flight: AtomicUsize,
    calls: AtomicUsize,
    failures: AtomicUsize,
    /// Calls that were in flight on it when it was lost, until the retry budget has taken them.
    lost: AtomicUsize,
    /// Calls of other routers on it by its last answer, and when that was.
    others: AtomicUsize,
    load_reported_at: AtomicMillis,
    /// Since when nothing has come back although calls are in flight.
    quiet_since: AtomicMillis,
    /// Its calls in flight had better be sent elsewhere.
    stalled: Notify,
    health: Mutex<RunnerHealth>,
    /// The state in `health`, for picking: every call reads it of every runner.
    state: AtomicU8,
    /// `health` counts failures. Most answers end none, and need no lock.
    is_suspect: AtomicBool,
    /// Bumped when the state of any runner changes: wakes calls that wait for a runner.
    changed: Arc<watch::Sender<()>>,
    origin: Instant,
}

impl Runner {
    /// A runner that has not been asked for its health yet. A runner that was here before (`is_known`)
    /// cools down first.
    pub(crate) fn new(
        identity: Identity,
        is_known: bool,
        options: conn::Options,
        connector: Option<Connector>,
        origin: Instant,
        changed: Arc<watch::Sender<()>>,
    ) -> Result<Self, AddressError> {
        Ok(Self {
            connection: Arc::new(Connection::new(identity.as_str(), options)?.secured(connector)?),
            identity,
            listed: AtomicBool::new(true),
            reports_load: AtomicBool::default(),
            in_flight: AtomicUsize::default(),
            calls: AtomicUsize::default(),
            failures: AtomicUsize::default(),
            lost: AtomicUsize::default(),
            others: AtomicUsize::default(),
            load_reported_at: AtomicMillis::default(),
            quiet_since: AtomicMillis::default(),
            stalled: Notify::new(),
            health: Mutex::new(RunnerHealth::new(is_known)),
            state: AtomicU8::new(HealthState::Starting as u8),
            is_suspect: AtomicBool::default(),
            changed,
            origin,
        })
    }

    /// Its name on the ring.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its connection.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether discovery lists it. A runner that is no longer listed stays for a while if it answers.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// Returns what was recorded before.
    pub(crate) fn set_listed(&self, listed: bool) -> bool {
        self.listed.swap(listed, Ordering::Relaxed)
    }

    /// This router's calls in flight on it.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// All routers' calls in flight on it. Without a recent report each of `routers` is taken to have as many
    /// as this one.
    pub(crate) fn load(&self, routers: usize, now: Instant) -> usize {
        let own = self.in_flight();
        match self.load_reported_at.ago(now.saturating_duration_since(self.origin)) {
            Some(ago) if ago < LOAD_HOLDS => own.saturating_add(self.others.load(Ordering::Relaxed)),
            _ => own.saturating_mul(routers.max(1)),
        }
    }

    /// Calls sent to it so far, and how many of them broke.
    pub(crate) fn totals(&self) -> (usize, usize) {
        (self.calls.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Whether it may be picked.
    pub(crate) fn state(&self) -> HealthState {
        let state = HealthState::ALL.get(usize::from(self.state.load(Ordering::Relaxed)));
        state.copied().unwrap_or(HealthState::Starting)
    }

    /// Takes an observation of a health check or a call.
    pub(crate) fn observe(&self, observation: Observation) {
        tracing::trace!(runner = %self.identity, ?observation, "a runner's health was observed");
        self.update(|health, now| health.observe(observation, now));
    }

    /// Ends the cooldown when it is over.
    pub(crate) fn tick(&self) {
        self.update(RunnerHealth::tick);
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.health.lock().next_tick().map(|at| self.origin + at)
    }

    /// Receives changes of state, its own and other runners'.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The runner answered a call, and reported how many other calls it has in flight if `load` is there. The call
    /// that was answered still counts here.
    pub(crate) fn answered(&self, load: Option<usize>) {
        self.quiet_since.set_now(self.origin);
        self.clear(RunnerHealth::record_answer);
        if let Some(load) = load {
            if !self.reports_load() {
                self.reports_load.store(true, Ordering::Relaxed);
            }
            let own = self.in_flight().saturating_sub(1);
            self.others.store(load.saturating_sub(own), Ordering::Relaxed);
            self.load_reported_at.set_now(self.origin);
        }
    }

    /// Whether an answer without a load is not its own, but a proxy's.
    pub(crate) fn reports_load(&self) -> bool {
        self.reports_load.load(Ordering::Relaxed)
    }

    /// The answer was one that only a healthy runner gives.
    pub(crate) fn record_success(&self) {
        self.clear(RunnerHealth::record_success);
    }

    /// Forgets failures, if there are any.
    fn clear(&self, clear: impl FnOnce(&mut RunnerHealth)) {
        if self.is_suspect.load(Ordering::Relaxed) {
            let mut health = self.health.lock();
            clear(&mut health);
            self.is_suspect.store(health.is_suspect(), Ordering::Relaxed);
        }
    }

    /// Counts a call that did not get through. Without a connection the runner is unavailable until a health check
    /// brings it back. A stream that was refused or reset means little by itself: then this returns a failure for
    /// [`record_failure`](Self::record_failure).
    pub(crate) fn record_broken_call(&self) -> Option<CallFailure> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.connection.is_up() {
            return Some(CallFailure::Stream);
        }
        self.observe(Observation::Unreachable);
        None
    }

    /// The calls that were in flight when it was lost, once.
    pub(crate) fn take_lost(&self) -> usize {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Records a failure for which the runner may be to blame. Ejects it after some in a row, if `may_eject`.
    pub(crate) fn record_failure(&self, failure: CallFailure, may_eject: impl FnOnce() -> bool) {
        let mut health = self.health.lock();
        self.is_suspect.store(true, Ordering::Relaxed);
        let enough = health.record_failure(failure);
        drop(health);
        if enough && may_eject() {
            self.observe(Observation::Failing);
        }
    }

    /// Whether it is time to probe it with a call: it is ejected and may come back, or nothing has come from it for
    /// some time although calls are in flight.
    pub(crate) fn is_probe_due(&self) -> bool {
        let quiet = || self.quiet_since.ago(self.origin.elapsed()).is_some_and(|quiet| quiet >= QUIET);
        (self.in_flight() > 0 && quiet()) || self.health.lock().is_probe_due(self.origin.elapsed())
    }

    /// A probe was answered. That says nothing of the calls that wait, so their failures still count.
    pub(crate) fn probe_answered(&self) {
        self.answered(None);
        self.observe(Observation::ProbeAnswered);
    }

    /// A probe was not answered in time. After some in a row the runner is ejected, if `may_eject`, and its calls in
    /// flight move on.
    pub(crate) fn probe_failed(&self, may_eject: impl FnOnce() -> bool) {
        let mut health = self.health.lock();
        self.is_suspect.store(true, Ordering::Relaxed);
        let enough = health.record_failed_probe();
        drop(health);
        if enough && (self.state() == HealthState::Ejected || may_eject()) {
            self.observe(Observation::Failing);
            self.stalled.notify_waiters();
        }
    }

    /// Returns when the runner has stalled with calls that are in flight at the time of this call.
    pub(crate) fn stalled(&self) -> impl Future<Output = ()> {
        self.stalled.notified()
    }

    /// Counts a call for as long as the guard lives.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            self.quiet_since.set_now(self.origin);
        }
        InFlight(Arc::clone(self))
    }

    fn update(&self, step: impl FnOnce(&mut RunnerHealth, Duration) -> Option<HealthState>) {
        let mut health = self.health.lock();
        let before = health.state();
        let Some(state) = step(&mut health, self.origin.elapsed()) else { return };
        // Stored before the lock is released, so that the last change wins here too.
        self.state.store(state as u8, Ordering::Relaxed);
        drop(health);
        if state.is_unavailable() {
            // Another version may come in its place.
            self.reports_load.store(false, Ordering::Relaxed);
            // The call that noticed it is not among them any more.
            self.lost.store(self.in_flight() + 1, Ordering::Relaxed);
        }
        let reason = state.as_str();
        match state {
            HealthState::Ejected => tracing::warn!(
                runner = %self.identity,
                "runner is ejected: it reports SERVING, but its calls fail or are not answered"
            ),
            HealthState::Healthy => tracing::info!(runner = %self.identity, "runner is healthy"),
            HealthState::CoolingDown => {
                tracing::info!(runner = %self.identity, "runner is back, cooling down");
            }
            _ if before.is_unexpected_before(state) => {
                tracing::warn!(runner = %self.identity, reason, "runner is unavailable");
            }
            _ => tracing::info!(runner = %self.identity, reason, "runner is unavailable"),
        }
        self.changed.send_replace(());
    }
}

/// A moment after an origin, or none yet.
#[derive(Debug)]
struct AtomicMillis(AtomicU64);

impl AtomicMillis {
    fn set_now(&self, origin: Instant) {
        self.0.store(millis(origin.elapsed()), Ordering::Relaxed);
    }

    /// How long before `now` it was, which is a time after the same origin.
    fn ago(&self, now: Duration) -> Option<Duration> {
        let at = Some(self.0.load(Ordering::Relaxed)).filter(|&at| at != u64::MAX)?;
        Some(Duration::from_millis(millis(now).saturating_sub(at)))
    }
}

impl Default for AtomicMillis {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

/// A call in flight on a runner.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Runner>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
