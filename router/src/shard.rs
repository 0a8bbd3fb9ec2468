//! One runner as the router knows it: its connection, its load and whether it may be picked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_ring::Identity;
use porch_fn_service::conn::{self, AddressError, Connection};
use porch_fn_service::tls::Connector;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::wellness::{Failure, Reason, Sign, Standing, Streak, Wellness};

/// Calls in flight and no answer for this long: functions may be slow, or the runner may have stalled.
const QUIET: Duration = Duration::from_secs(3);
/// Tries in a row without an answer that make a runner a stalled one. It may also be short of processors for a moment.
const MAX_TRIES_FAILED: usize = 2;
/// What a runner said of its load counts for this long.
const LOAD_HOLDS: Duration = Duration::from_secs(5);

/// A runner. Shared by all calls; everything in it is atomic or held under a lock for nanoseconds.
#[derive(Debug)]
pub(crate) struct Shard {
    identity: Identity,
    connection: Connection,
    /// Discovery lists it.
    listed: AtomicBool,
    /// It has marked an answer since it became reachable. Older runners do not.
    marks: AtomicBool,
    in_flight: AtomicUsize,
    calls: AtomicUsize,
    failures: AtomicUsize,
    /// Calls that were in flight on it when it was lost, until the retry budget has heard of them.
    lost: AtomicUsize,
    /// Calls of other routers on it, as far as its last answer told, and when that was.
    others: AtomicUsize,
    told_at: AtomicMillis,
    /// Since when nothing has come back although calls are in flight.
    quiet_since: AtomicMillis,
    streak: Mutex<Streak>,
    /// There is a streak: most answers end none, and need no lock.
    failing: AtomicBool,
    /// Tries that were not answered, since anything was.
    tries_failed: AtomicUsize,
    /// Its calls in flight had better be sent elsewhere.
    stalled: Notify,
    wellness: Mutex<Wellness>,
    /// The standing in `wellness`, for picking: every call reads it of every runner.
    standing: AtomicU8,
    /// Bumped at each change of standing of any shard: wakes calls that wait for a runner.
    changed: Arc<watch::Sender<()>>,
    origin: Instant,
}

impl Shard {
    /// A runner that has not been asked for its health yet. One that has `returned` was here
    /// before.
    pub(crate) fn new(
        identity: Identity,
        returned: bool,
        options: conn::Options,
        connector: Option<Connector>,
        origin: Instant,
        changed: Arc<watch::Sender<()>>,
    ) -> Result<Self, AddressError> {
        let wellness = if returned { Wellness::returned() } else { Wellness::default() };
        Ok(Self {
            connection: Connection::new(identity.as_str(), options)?.secured(connector)?,
            identity,
            listed: AtomicBool::new(true),
            marks: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            told_at: AtomicMillis::never(),
            quiet_since: AtomicMillis::never(),
            streak: Mutex::default(),
            failing: AtomicBool::new(false),
            tries_failed: AtomicUsize::new(0),
            stalled: Notify::new(),
            standing: AtomicU8::new(encode(wellness.standing())),
            wellness: Mutex::new(wellness),
            changed,
            origin,
        })
    }

    /// Its name on the ring.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its connection.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether discovery lists it. One that is not listed any more stays for a while if it answers.
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

    /// Calls in flight on it, those of all routers. Where it has not said how many there are of late, it is taken to
    /// have as many of each of `routers`.
    pub(crate) fn load(&self, routers: usize, now: Instant) -> usize {
        let own = self.in_flight();
        match self.told_at.ago(now.saturating_duration_since(self.origin)) {
            Some(ago) if ago < LOAD_HOLDS => own.saturating_add(self.others.load(Ordering::Relaxed)),
            _ => own.saturating_mul(routers.max(1)),
        }
    }

    /// Calls sent to it so far, and how many of them broke.
    pub(crate) fn totals(&self) -> (usize, usize) {
        (self.calls.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Whether it may be picked.
    pub(crate) fn standing(&self) -> Standing {
        decode(self.standing.load(Ordering::Relaxed))
    }

    /// Takes a sign from a health check or a call.
    pub(crate) fn note(&self, sign: Sign) {
        tracing::trace!(shard = %self.identity, ?sign, "a sign of a runner's health");
        self.update(|wellness, now| wellness.note(sign, now));
    }

    /// Ends the hold-down when it is over.
    pub(crate) fn tick(&self) {
        self.update(Wellness::tick);
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.wellness.lock().next_tick().map(|at| self.origin + at)
    }

    /// Hears of changes of standing, its own and others'.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The runner answered a call, and with `load` said how many others it has in flight. The call that was answered
    /// still counts here.
    pub(crate) fn answered(&self, load: Option<usize>) {
        self.quiet_since.set_now(self.origin);
        self.forget_tries();
        if let Some(load) = load {
            if !self.marks_answers() {
                self.marks.store(true, Ordering::Relaxed);
            }
            let own = self.in_flight().saturating_sub(1);
            self.others.store(load.saturating_sub(own), Ordering::Relaxed);
            self.told_at.set_now(self.origin);
        }
    }

    /// Whether an answer without a load is not its own, but of a proxy in between.
    pub(crate) fn marks_answers(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// The answer was one that only a runner in order gives.
    pub(crate) fn did_well(&self) {
        if self.failing.load(Ordering::Relaxed) {
            self.forget_failures();
        }
    }

    /// Not written to at each answer: it is zero, but for moments.
    fn forget_tries(&self) {
        if self.tries_failed.load(Ordering::Relaxed) != 0 {
            self.tries_failed.store(0, Ordering::Relaxed);
        }
    }

    fn forget_failures(&self) {
        let mut streak = self.streak.lock();
        *streak = Streak::default();
        self.failing.store(false, Ordering::Relaxed);
    }

    /// Counts a call that did not get through. If there is no connection, the runner is out until a health check
    /// brings it back. A stream that was refused or reset says little by itself: see [`blame`](Self::blame).
    pub(crate) fn failed(&self) -> Option<Failure> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.connection.is_up() {
            return Some(Failure::Hop);
        }
        self.note(Sign::Bad(Reason::Unreachable));
        None
    }

    /// The calls that were in flight when it was lost, once.
    pub(crate) fn take_lost(&self) -> usize {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Takes a failure for which the runner may be to blame. After some in a row it is to be passed over, if `may_pass`.
    pub(crate) fn blame(&self, failure: Failure, may_pass: impl FnOnce() -> bool) {
        let mut streak = self.streak.lock();
        self.failing.store(true, Ordering::Relaxed);
        let enough = streak.failed(failure);
        drop(streak);
        if enough && may_pass() {
            self.note(Sign::Failing);
        }
    }

    /// Whether it is time to try it with a call of our own: it is passed over and may come back, or nothing has come
    /// from it for some time although calls are in flight.
    pub(crate) fn is_try_due(&self) -> bool {
        let quiet = || self.quiet_since.ago(self.origin.elapsed()).is_some_and(|quiet| quiet >= QUIET);
        (self.in_flight() > 0 && quiet()) || self.wellness.lock().is_try_due(self.origin.elapsed())
    }

    /// A try was answered. That says nothing of the calls that wait, so their failures still count.
    pub(crate) fn try_answered(&self) {
        self.forget_tries();
        self.quiet_since.set_now(self.origin);
        self.note(Sign::Answering);
    }

    /// A try was not answered in time. After some in a row the runner is passed over, if `may_pass`, and its calls in
    /// flight are told.
    pub(crate) fn try_failed(&self, may_pass: impl FnOnce() -> bool) {
        let failed = self.tries_failed.fetch_add(1, Ordering::Relaxed) + 1;
        let passed = self.standing() == Standing::PassedOver;
        if failed >= MAX_TRIES_FAILED && (passed || may_pass()) {
            self.note(Sign::Failing);
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

    fn update(&self, step: impl FnOnce(&mut Wellness, Duration) -> Option<Standing>) {
        let mut wellness = self.wellness.lock();
        let Some(standing) = step(&mut wellness, self.origin.elapsed()) else { return };
        // Stored before the lock is let go, so that the last change wins here too.
        let before = decode(self.standing.swap(encode(standing), Ordering::Relaxed));
        drop(wellness);
        // What counts is what happens in one standing.
        self.forget_failures();
        if standing == Standing::Well {
            self.forget_tries();
        }
        if matches!(standing, Standing::Out(_)) {
            // Another version may come in its place.
            self.marks.store(false, Ordering::Relaxed);
            // The call that noticed it is not among them any more.
            self.lost.store(self.in_flight() + 1, Ordering::Relaxed);
        }
        match standing {
            Standing::Out(reason) if before.is_unexpected_before(standing) => {
                tracing::warn!(shard = %self.identity, reason = reason.as_str(), "runner is out");
            }
            Standing::Out(reason) => {
                tracing::info!(shard = %self.identity, reason = reason.as_str(), "runner is out");
            }
            Standing::Well => tracing::info!(shard = %self.identity, "runner is well"),
            Standing::HeldDown => tracing::info!(shard = %self.identity, "runner is back, held down"),
            Standing::PassedOver => tracing::warn!(
                shard = %self.identity,
                "runner is passed over: it says SERVING, and its calls fail or are not answered"
            ),
        }
        self.changed.send_replace(());
    }
}

fn encode(standing: Standing) -> u8 {
    Standing::ALL.iter().zip(0..).find(|&(&known, _)| known == standing).map_or(u8::MAX, |(_, code)| code)
}

fn decode(code: u8) -> Standing {
    Standing::ALL.get(usize::from(code)).copied().unwrap_or(Standing::Out(Reason::Unknown))
}

/// A moment after an origin, or none yet.
#[derive(Debug)]
struct AtomicMillis(AtomicU64);

impl AtomicMillis {
    fn never() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    fn set_now(&self, origin: Instant) {
        self.0.store(millis(origin.elapsed()), Ordering::Relaxed);
    }

    /// How long before `now` it was, which is a time after the same origin.
    fn ago(&self, now: Duration) -> Option<Duration> {
        let at = Some(self.0.load(Ordering::Relaxed)).filter(|&at| at != u64::MAX)?;
        Some(Duration::from_millis(millis(now).saturating_sub(at)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

/// A call in flight on a runner.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Shard>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_tries_count_in_a_row_only() {
        let changed = Arc::new(watch::Sender::new(()));
        let second = Duration::from_secs(1);
        let options =
            conn::Options { connect_timeout: second, ping: None, user_timeout: second, keepalive: None };
        let shard = Shard::new(
            Identity::from("10.0.0.1:9445".to_owned()),
            false,
            options,
            None,
            Instant::now(),
            changed,
        )
        .unwrap();
        shard.note(Sign::Serving);
        let answers: [fn(&Shard); 3] = [
            |shard| shard.answered(None),
            Shard::try_answered,
            |shard| {
                shard.note(Sign::Bad(Reason::Unreachable));
                shard.note(Sign::Serving);
            },
        ];
        for answer in answers {
            shard.try_failed(|| true);
            assert_eq!(shard.standing(), Standing::Well);
            answer(&shard);
        }
        let stalled = shard.stalled();
        shard.try_failed(|| true);
        shard.try_failed(|| true);
        assert_eq!(shard.standing(), Standing::PassedOver);
        stalled.await;
    }
}
