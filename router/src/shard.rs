//! One runner as the router knows it: its connection, its load and whether it may be picked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_ring::Identity;
use porch_fn_service::conn::{self, AddressError, Connection};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::wellness::{Reason, Sign, Standing, Wellness};

/// Bound on one dial, and so on what a call waits for one.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// A runner that does not answer a ping is hung: its calls move on.
const PING: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(2));
/// Bytes unacknowledged for this long mean the same.
const USER_TIMEOUT: Duration = Duration::from_secs(4);

/// A runner. Shared by all calls; everything in it is atomic or held under a lock for nanoseconds.
#[derive(Debug)]
pub(crate) struct Shard {
    identity: Identity,
    connection: Connection,
    in_flight: AtomicUsize,
    calls: AtomicUsize,
    failures: AtomicUsize,
    wellness: Mutex<Wellness>,
    /// The standing in `wellness`, for picking: every call reads it of every runner.
    standing: AtomicU8,
    /// Bumped at each change of standing of any shard: wakes calls that wait for a runner.
    changed: Arc<watch::Sender<()>>,
    origin: Instant,
}

impl Shard {
    /// A runner that has not been asked for its health yet.
    pub(crate) fn new(
        identity: Identity,
        origin: Instant,
        changed: Arc<watch::Sender<()>>,
    ) -> Result<Self, AddressError> {
        let options =
            conn::Options { connect_timeout: CONNECT_TIMEOUT, ping: Some(PING), user_timeout: USER_TIMEOUT };
        Ok(Self {
            connection: Connection::new(identity.as_str(), options)?,
            identity,
            in_flight: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            standing: AtomicU8::new(encode(Wellness::default().standing())),
            wellness: Mutex::default(),
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

    /// This router's calls in flight on it.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
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

    /// Counts a call that did not get through. If there is no connection, the runner is out until a health
    /// check brings it back; a stream that was refused or reset says nothing about the others.
    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !self.connection.is_up() {
            self.note(Sign::Bad(Reason::Unreachable));
        }
    }

    /// Counts a call for as long as the guard lives.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    fn update(&self, step: impl FnOnce(&mut Wellness, Duration) -> Option<Standing>) {
        let mut wellness = self.wellness.lock();
        let Some(standing) = step(&mut wellness, self.origin.elapsed()) else { return };
        // Stored before the lock is let go, so that the last change wins here too.
        self.standing.store(encode(standing), Ordering::Relaxed);
        drop(wellness);
        match standing {
            Standing::Out(reason) => {
                tracing::warn!(shard = %self.identity, reason = reason.as_str(), "runner is out");
            }
            Standing::Well => tracing::info!(shard = %self.identity, "runner is well"),
            Standing::HeldDown => tracing::info!(shard = %self.identity, "runner is back, held down"),
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

/// A call in flight on a runner.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Shard>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
