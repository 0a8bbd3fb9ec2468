//! One runner: its connection, its load and its health state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::{self, AddressError, Connection};
use porch_fn_numbers::{Recorded, Series};
use porch_fn_tls::Connector;
use scopeguard::guard;
use strum::VariantArray;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::health::{CallFailure, HealthState, Observation, RunnerHealth};
use crate::totals::{Part, Totals};

/// If a runner has calls in flight and sends no answer for this long, it is probed. Its functions
/// may be slow, or the runner may have stalled.
const QUIET: Duration = Duration::from_secs(3);
/// A reported load counts for this long.
const LOAD_HOLDS: Duration = Duration::from_secs(5);
/// Value of [`Runner::others`] when there is no recent report of the load.
const UNKNOWN: usize = usize::MAX;

/// A runner. Shared by all calls.
#[derive(Debug)]
pub(crate) struct Runner {
    /// Its name on the ring.
    pub(crate) address: Arc<str>,
    pub(crate) connection: Arc<Connection>,
    in_flight: AtomicUsize,
    /// Other routers' calls in flight on the runner, from its last answer, or [`UNKNOWN`].
    others: AtomicUsize,
    /// A copy of the state in `record`. Calls read it without a lock.
    state: AtomicU8,
    /// The sums over all runners.
    totals: Arc<Totals>,
    /// `--router-count`: routers that share the runners.
    routers: usize,
    record: Mutex<Record>,
    numbers: Mutex<Series>,
    /// Notified when the runner has stalled, so that its calls in flight move to another runner.
    stalled: Notify,
    /// Notified when the runner becomes unreachable.
    unreachable: Notify,
    /// Notified when the state of any runner changes.
    changed: Arc<watch::Sender<()>>,
    origin: Instant,
}

/// The part of a [`Runner`] behind a lock. The lock is held only for nanoseconds.
#[derive(Debug, Default)]
struct Record {
    health: RunnerHealth,
    /// Whether discovery lists the runner.
    listed: bool,
    calls: usize,
    failures: usize,
    /// Calls that were in flight on the runner when it was lost. Reset when the retry budget
    /// reserves retries for them.
    lost: usize,
    /// When the runner last reported its load. Older versions never report it.
    reported_at: Option<Instant>,
    /// When the runner last answered, or when a call was sent while no other call was in
    /// flight.
    heard_at: Option<Instant>,
    has_left: bool,
    /// The runner's part of [`Totals`].
    part: Option<Part>,
}

/// What all runners of a router share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) connections: conn::Options,
    /// The TLS connector for runners. `None` means plain text.
    pub(crate) connector: Option<Connector>,
    /// Notified when the state of any runner changes.
    pub(crate) changed: Arc<watch::Sender<()>>,
    pub(crate) totals: Arc<Totals>,
    /// `--router-count`: routers that share the runners.
    pub(crate) routers: usize,
}

impl Runner {
    /// A runner before its first health check. A runner that discovery lists again (`is_known`)
    /// cools down first. It counts in [`Totals`] until [`leave`](Self::leave).
    ///
    /// # Errors
    /// [`AddressError`] when `address` is not `host:port`.
    pub(crate) fn new(address: Arc<str>, is_known: bool, shared: Shared) -> Result<Self, AddressError> {
        let Shared { connections, connector, changed, totals, routers } = shared;
        let record = Record { health: RunnerHealth::new(is_known), listed: true, ..Record::default() };
        let runner = Self {
            connection: Arc::new(Connection::new(Arc::clone(&address), connections, connector)?),
            address,
            in_flight: AtomicUsize::default(),
            others: AtomicUsize::new(UNKNOWN),
            state: AtomicU8::new(HealthState::Starting as u8),
            totals,
            routers,
            record: Mutex::new(record),
            numbers: Mutex::default(),
            stalled: Notify::new(),
            unreachable: Notify::new(),
            changed,
            origin: Instant::now(),
        };
        runner.count(&mut runner.record.lock());
        Ok(runner)
    }

    /// The runner is no longer a member. Its calls continue, but it no longer counts, and no call
    /// picks it, although the ring may still have it.
    pub(crate) fn leave(&self) {
        let mut record = self.record.lock();
        record.has_left = true;
        self.count(&mut record);
    }

    /// Updates the copy of the state and the runner's part of the sums, after a change. The lock is
    /// held, so that the copy always has the last change.
    fn count(&self, record: &mut Record) {
        let state = if record.has_left { HealthState::Unreachable } else { record.health.state() };
        self.state.store(state as u8, Ordering::Relaxed);
        let load = u32::try_from(self.load()).unwrap_or(u32::MAX);
        let part = (!record.has_left).then_some(Part { state, load });
        self.totals.replace(std::mem::replace(&mut record.part, part), part);
    }

    /// Whether discovery lists the runner. An unlisted runner stays for a while if it reports
    /// SERVING.
    pub(crate) fn is_listed(&self) -> bool {
        self.record.lock().listed
    }

    /// Records whether discovery lists the runner. Returns the previous value.
    pub(crate) fn set_listed(&self, listed: bool) -> bool {
        std::mem::replace(&mut self.record.lock().listed, listed)
    }

    /// This router's calls in flight on the runner.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// All routers' calls in flight on the runner. Without a recent report, this assumes that each
    /// router has as many calls in flight as this router.
    pub(crate) fn load(&self) -> usize {
        let own = self.in_flight();
        match self.others.load(Ordering::Relaxed) {
            UNKNOWN => own.saturating_mul(self.routers.max(1)),
            others => own.saturating_add(others),
        }
    }

    /// Number of attempts to call the runner, and how many were interrupted or not sent.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let record = self.record.lock();
        (record.calls, record.failures)
    }

    /// Calls that the runner began to serve, with their failures and durations.
    pub(crate) fn recorded(&self) -> Recorded {
        self.numbers.lock().recorded(self.origin.elapsed())
    }

    /// Records an attempt that the runner neither refused nor missed.
    pub(crate) fn record_call(&self, took: Duration, failed: bool) {
        self.numbers.lock().record(self.origin.elapsed(), took, failed);
    }

    /// The health state. It decides whether a call may use the runner.
    pub(crate) fn state(&self) -> HealthState {
        HealthState::VARIANTS[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Applies an observation of a health check or a call.
    pub(crate) fn observe(&self, observation: Observation) {
        tracing::trace!(runner = %self.address, ?observation, "a runner's health was observed");
        self.update(|health, now| health.observe(observation, now));
    }

    /// Ends the cooldown, and drops the reported load, when their time is over.
    pub(crate) fn tick(&self) {
        self.update(RunnerHealth::tick);
        let mut record = self.record.lock();
        if record.reported_at.is_none_or(|at| at.elapsed() >= LOAD_HOLDS) {
            self.others.store(UNKNOWN, Ordering::Relaxed);
            self.count(&mut record);
        }
    }

    /// Completes when the runner is unreachable.
    pub(crate) async fn unreachable(&self) {
        // A change after this line is not missed.
        let notified = self.unreachable.notified();
        if self.state() != HealthState::Unreachable {
            notified.await;
        }
    }

    /// Records that the runner answered a call. `load` is the runner's reported number of calls in
    /// flight. The answered call is still in `in_flight`, so it is subtracted here.
    pub(crate) fn answered(&self, load: Option<usize>) {
        let (mut record, now) = (self.record.lock(), Instant::now());
        record.heard_at = Some(now);
        record.health.record_answer();
        if let Some(load) = load {
            record.reported_at = Some(now);
            let own = self.in_flight().saturating_sub(1);
            self.others.store(load.saturating_sub(own), Ordering::Relaxed);
            self.count(&mut record);
        }
    }

    /// Whether the runner has reported its load since it became reachable. If it has, an answer
    /// without a load comes from a proxy.
    pub(crate) fn reports_load(&self) -> bool {
        self.record.lock().reported_at.is_some()
    }

    /// Records an answer that only a healthy runner sends.
    pub(crate) fn record_success(&self) {
        self.record.lock().health.record_success();
    }

    /// Counts a call that got no answer. If the connection is lost, the runner is unavailable until
    /// a health check succeeds. If only the stream was refused or reset, this counts as one
    /// failure.
    pub(crate) fn record_broken_call(&self, may_eject: impl FnOnce() -> bool) {
        self.record.lock().failures += 1;
        if self.connection.is_up() {
            self.record_failure(CallFailure::Stream, may_eject);
        } else {
            self.observe(Observation::Unreachable);
        }
    }

    /// Returns the number of calls that were in flight when the runner was lost, and resets it.
    pub(crate) fn take_lost(&self) -> usize {
        std::mem::take(&mut self.record.lock().lost)
    }

    /// Records a failure that the runner may have caused. Ejects the runner after several in a row,
    /// if `may_eject` allows it.
    pub(crate) fn record_failure(&self, failure: CallFailure<'_>, may_eject: impl FnOnce() -> bool) {
        let enough = self.record.lock().health.record_failure(failure, self.origin.elapsed());
        if enough && may_eject() {
            self.observe(Observation::Failing);
        }
    }

    /// Whether to probe the runner with a call: its ejection time is over, or it has calls in
    /// flight and has sent nothing for [`QUIET`].
    pub(crate) fn is_probe_due(&self) -> bool {
        let record = self.record.lock();
        let quiet = record.heard_at.is_some_and(|at| at.elapsed() >= QUIET);
        (quiet && self.in_flight() > 0) || record.health.is_probe_due(self.origin.elapsed())
    }

    /// Records an answered probe. An answered probe does not prove that calls succeed, so earlier
    /// failures still count.
    pub(crate) fn probe_answered(&self) {
        self.answered(None);
        self.observe(Observation::ProbeAnswered);
    }

    /// Records an unanswered probe. After several in a row, the runner is ejected if `may_eject`
    /// allows it, and its calls in flight move to other runners.
    pub(crate) fn probe_failed(&self, may_eject: impl FnOnce() -> bool) {
        let enough = self.record.lock().health.record_failed_probe();
        if enough && (self.state() == HealthState::Ejected || may_eject()) {
            self.observe(Observation::Failing);
            self.stalled.notify_waiters();
        }
    }

    /// Completes when the runner stalls. A stall before this method was called does not count.
    pub(crate) fn stalled(&self) -> impl Future<Output = ()> {
        self.stalled.notified()
    }

    /// Counts a call as in flight until the guard is dropped.
    pub(crate) fn enter(&self) -> impl Drop {
        let mut record = self.record.lock();
        record.calls += 1;
        if self.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            record.heard_at = Some(Instant::now());
        }
        self.count(&mut record);
        drop(record);
        guard(self, |runner| {
            let mut record = runner.record.lock();
            runner.in_flight.fetch_sub(1, Ordering::Relaxed);
            runner.count(&mut record);
        })
    }

    fn update(&self, step: impl FnOnce(&mut RunnerHealth, Duration) -> Option<HealthState>) {
        let mut record = self.record.lock();
        let before = record.health.state();
        let Some(state) = step(&mut record.health, self.origin.elapsed()) else { return };
        if state.is_unavailable() {
            // The runner may restart with an older version, which does not report its load.
            record.reported_at = None;
            // If a call noticed the loss, that call is no longer in `in_flight`, so one is added
            // for it.
            record.lost = self.in_flight() + 1;
        }
        self.count(&mut record);
        drop(record);
        if state == HealthState::Unreachable {
            self.unreachable.notify_waiters();
        }
        let (runner, reason) = (&self.address, state.into_str());
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
