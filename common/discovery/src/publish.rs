//! Publishes discovery's results: complete sets of servers, and the last error.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_backoff::{Backoff, spread};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// Mean pauses after failures: they double from the first to the second value.
const RETRY_FROM: Duration = Duration::from_millis(500);
const RETRY_TO: Duration = Duration::from_secs(10);

/// The servers of a target at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of sets so far. 0 means that there was no answer yet, so `endpoints` is empty.
    pub generation: u64,
    /// `host:port`, with IPv6 addresses in brackets; sorted, without duplicates.
    pub endpoints: Arc<[String]>,
    /// The last error: there was no answer, or the target does not exist. A change of only this
    /// field does not notify receivers.
    pub last_error: Option<Arc<str>>,
}

/// Publishes the answers of one target, and logs what changes.
#[derive(Debug)]
pub(super) struct Publisher {
    /// The target, for the log.
    label: String,
    sender: Arc<watch::Sender<Snapshot>>,
    failing: Option<Failing>,
    /// The hint of the last success.
    hint: Option<Arc<str>>,
}

/// Consecutive failures.
#[derive(Debug)]
struct Failing {
    since: Instant,
    attempts: u32,
    backoff: Backoff,
}

impl Snapshot {
    /// Whether there was an answer, possibly an empty one. After it, a router may serve.
    pub fn is_answered(&self) -> bool {
        self.generation > 0
    }
}

impl Publisher {
    pub(super) fn new(label: String, sender: Arc<watch::Sender<Snapshot>>) -> Self {
        Self { label, sender, failing: None, hint: None }
    }

    /// The target, for the log.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Ends a series of failures. `hint` is the reason why there are no endpoints, if it is known.
    pub(super) fn record_success(&mut self, hint: Option<Arc<str>>) {
        if let Some(failing) = self.failing.take() {
            let (attempts, after) = (failing.attempts, failing.since.elapsed());
            info!(discovery = %self.label, attempts, ?after, "discovery works again");
        }
        if let (Some(hint), None) = (&hint, &self.hint) {
            warn!(discovery = %self.label, "no endpoints: {hint}");
        }
        self.hint.clone_from(&hint);
        self.set_error(hint);
    }

    /// Counts a failure; the last set stays. Returns the pause before the next attempt.
    pub(super) fn record_failure(&mut self, error: &dyn Display) -> Duration {
        let failing = self.failing.get_or_insert_with(|| {
            let kept = self.sender.borrow().endpoints.len();
            warn!(discovery = %self.label, %error, kept, "discovery fails: keeping the last endpoints");
            Failing { since: Instant::now(), attempts: 0, backoff: Backoff::new(RETRY_FROM, RETRY_TO) }
        });
        failing.attempts = failing.attempts.saturating_add(1);
        // The pause is random, so that many routers do not query a recovering server at the same
        // moment.
        let wait = spread(failing.backoff.next_pause(), 0.5..1.5);
        self.set_error(Some(error.to_string().into()));
        wait
    }

    fn set_error(&self, error: Option<Arc<str>>) {
        self.sender.send_if_modified(|snapshot| {
            snapshot.last_error = error;
            false
        });
    }

    /// Sends the endpoints if they changed.
    pub(super) fn publish(&mut self, endpoints: Arc<[String]>) {
        self.sender.send_if_modified(|snapshot| {
            let before = std::mem::replace(&mut snapshot.endpoints, endpoints);
            if snapshot.is_answered() && snapshot.endpoints == before {
                return false;
            }
            let added = missing_from(&before, &snapshot.endpoints);
            let removed = missing_from(&snapshot.endpoints, &before);
            let endpoints = snapshot.endpoints.len();
            info!(discovery = %self.label, endpoints, added, removed, "endpoints changed");
            snapshot.generation += 1;
            true
        });
    }
}

/// Sorts the endpoints and removes duplicates.
pub(super) fn sorted(endpoints: impl Iterator<Item = String>) -> Arc<[String]> {
    endpoints.collect::<BTreeSet<_>>().into_iter().collect()
}

/// How many of `new` are not in `old`; both are sorted.
fn missing_from(old: &[String], new: &[String]) -> usize {
    new.iter().filter(|endpoint| old.binary_search(endpoint).is_err()).count()
}
