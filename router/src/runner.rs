//! One runner as the router knows it: its connection, its load and whether it may be picked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::{self, AddressError, Connection};
use porch_fn_tls::Connector;
use scopeguard::guard;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::health::{CallFailure, HealthState, Observation, RunnerHealth};

/// Calls in flight and no answer for this long: functions may be slow, or the runner may have
/// stalled.
const QUIET: Duration = Duration::from_secs(3);
/// A reported load counts for this long.
const LOAD_HOLDS: Duration = Duration::from_secs(5);
/// [`Runner::others`] when no report of the load counts.
const UNKNOWN: usize = usize::MAX;

/// A runner. Shared by all calls.
#[derive(Debug)]
pub(crate) struct Runner {
    /// Its name on the ring.
    pub(crate) address: Arc<str>,
    pub(crate) connection: Arc<Connection>,
    in_flight: AtomicUsize,
    /// Calls of other routers on it, by its last answer, or [`UNKNOWN`].
    others: AtomicUsize,
    /// The state in `record`. Every call reads it of every runner.
    state: AtomicU8,
    record: Mutex<Record>,
    /// Its calls in flight had better be sent elsewhere.
    stalled: Notify,
    /// Sent to when the state of any runner changes: wakes calls that wait for a runner.
    changed: Arc<watch::Sender<()>>,
    origin: Instant,
}

/// What has happened to a runner. Locked for nanoseconds.
#[derive(Debug)]
struct Record {
    health: RunnerHealth,
    /// Discovery lists it.
    listed: bool,
    calls: usize,
    failures: usize,
    /// Calls that were in flight on it when it was lost, until the retry budget has taken them.
    lost: usize,
    /// When it last reported its load. Older versions never do.
    reported_at: Option<Instant>,
    /// When something last came back, or the first call was sent after a pause.
    heard_at: Option<Instant>,
}

impl Runner {
    /// A runner that has not been asked for its health yet. A runner that was here before
    /// (`is_known`) cools down first.
    ///
    /// # Errors
    /// [`AddressError`] when `address` is none to connect to.
    pub(crate) fn new(
        address: Arc<str>,
        is_known: bool,
        options: conn::Options,
        connector: Option<Connector>,
        changed: Arc<watch::Sender<()>>,
    ) -> Result<Self, AddressError> {
        let record = Record {
            health: RunnerHealth::new(is_known),
            listed: true,
            calls: 0,
            failures: 0,
            lost: 0,
            reported_at: None,
            heard_at: None,
        };
        Ok(Self {
            connection: Arc::new(Connection::new(Arc::clone(&address), options, connector)?),
            address,
            in_flight: AtomicUsize::default(),
            others: AtomicUsize::new(UNKNOWN),
            state: AtomicU8::new(HealthState::Starting as u8),
            record: Mutex::new(record),
            stalled: Notify::new(),
            changed,
            origin: Instant::now(),
        })
    }

    /// Whether discovery lists it. A runner that is no longer listed stays for a while if it
    /// answers.
    pub(crate) fn is_listed(&self) -> bool {
        self.record.lock().listed
    }

    /// Returns what was recorded before.
    pub(crate) fn set_listed(&self, listed: bool) -> bool {
        std::mem::replace(&mut self.record.lock().listed, listed)
    }

    /// This router's calls in flight on it.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// All routers' calls in flight on it. Without a recent report each of `routers` is taken to
    /// have as many as this one.
    pub(crate) fn load(&self, routers: usize) -> usize {
        let own = self.in_flight();
        match self.others.load(Ordering::Relaxed) {
            UNKNOWN => own.saturating_mul(routers.max(1)),
            others => own.saturating_add(others),
        }
    }

    /// Calls sent to it so far, and how many of them broke.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let record = self.record.lock();
        (record.calls, record.failures)
    }

    /// Whether it may be picked.
    pub(crate) fn state(&self) -> HealthState {
        HealthState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Takes an observation of a health check or a call.
    pub(crate) fn observe(&self, observation: Observation) {
        tracing::trace!(runner = %self.address, ?observation, "a runner's health was observed");
        self.update(|health, now| health.observe(observation, now));
    }

    /// Ends the cooldown and forgets the reported load when their time is over.
    pub(crate) fn tick(&self) {
        self.update(RunnerHealth::tick);
        let record = self.record.lock();
        if record.reported_at.is_none_or(|at| at.elapsed() >= LOAD_HOLDS) {
            self.others.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// Receives changes of state, its own and other runners'.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The runner answered a call, and reported how many calls it has in flight if `load` is there.
    /// The call that was answered still counts.
    pub(crate) fn answered(&self, load: Option<usize>) {
        let (mut record, now) = (self.record.lock(), Instant::now());
        record.heard_at = Some(now);
        record.health.record_answer();
        if let Some(load) = load {
            record.reported_at = Some(now);
            let own = self.in_flight().saturating_sub(1);
            self.others.store(load.saturating_sub(own), Ordering::Relaxed);
        }
    }

    /// Whether it has reported its load since it became reachable. Then an answer without a load is
    /// a proxy's.
    pub(crate) fn reports_load(&self) -> bool {
        self.record.lock().reported_at.is_some()
    }

    /// The answer was one that only a healthy runner gives.
    pub(crate) fn record_success(&self) {
        self.record.lock().health.record_success();
    }

    /// Counts a call that did not get through. Without a connection the runner is unavailable until
    /// a health check brings it back. A stream that was refused or reset means little by itself: it
    /// counts as a failure.
    pub(crate) fn record_broken_call(&self, may_eject: impl FnOnce() -> bool) {
        self.record.lock().failures += 1;
        if self.connection.is_up() {
            self.record_failure(CallFailure::Stream, may_eject);
        } else {
            self.observe(Observation::Unreachable);
        }
    }

    /// The calls that were in flight when it was lost, once.
    pub(crate) fn take_lost(&self) -> usize {
        std::mem::take(&mut self.record.lock().lost)
    }

    /// Records a failure for which the runner may be to blame. Ejects it after some in a row, if
    /// `may_eject`.
    pub(crate) fn record_failure(&self, failure: CallFailure, may_eject: impl FnOnce() -> bool) {
        let enough = self.record.lock().health.record_failure(failure);
        if enough && may_eject() {
            self.observe(Observation::Failing);
        }
    }

    /// Whether it is time to probe it with a call: it is ejected and may come back, or nothing has
    /// come from it for some time although calls are in flight.
    pub(crate) fn is_probe_due(&self) -> bool {
        let record = self.record.lock();
        let quiet = record.heard_at.is_some_and(|at| at.elapsed() >= QUIET);
        (quiet && self.in_flight() > 0) || record.health.is_probe_due(self.origin.elapsed())
    }

    /// A probe was answered. That says nothing of the calls that wait, so their failures still
    /// count.
    pub(crate) fn probe_answered(&self) {
        self.answered(None);
        self.observe(Observation::ProbeAnswered);
    }

    /// A probe was not answered in time. After some in a row the runner is ejected, if `may_eject`,
    /// and its calls in flight move on.
    pub(crate) fn probe_failed(&self, may_eject: impl FnOnce() -> bool) {
        let enough = self.record.lock().health.record_failed_probe();
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
    pub(crate) fn enter(&self) -> impl Drop {
        let mut record = self.record.lock();
        record.calls += 1;
        if self.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            record.heard_at = Some(Instant::now());
        }
        guard(&self.in_flight, |in_flight| _ = in_flight.fetch_sub(1, Ordering::Relaxed))
    }

    fn update(&self, step: impl FnOnce(&mut RunnerHealth, Duration) -> Option<HealthState>) {
        let mut record = self.record.lock();
        let before = record.health.state();
        let Some(state) = step(&mut record.health, self.origin.elapsed()) else { return };
        if state.is_unavailable() {
            // Another version may come in its place.
            record.reported_at = None;
            // The call that noticed it is not among them any more.
            record.lost = self.in_flight() + 1;
        }
        // Stored before the lock is released, so that the last change wins here too.
        self.state.store(state as u8, Ordering::Relaxed);
        drop(record);
        let (runner, reason) = (&self.address, state.as_str());
        match state {
            HealthState::Ejected => tracing::warn!(
                %runner,
                "runner is ejected: it reports SERVING, but its calls fail or are not answered"
            ),
            HealthState::Healthy => tracing::info!(%runner, "runner is healthy"),
            HealthState::CoolingDown => tracing::info!(%runner, "runner is back, cooling down"),
            _ if before.is_unexpected_before(state) => {
                tracing::warn!(%runner, reason, "runner is unavailable");
            }
            _ => tracing::info!(%runner, reason, "runner is unavailable"),
        }
        self.changed.send_replace(());
    }
}
