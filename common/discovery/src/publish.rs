//! What discovery knows, as those who use it see it: complete sets, and what is wrong with them.

use std::{collections::BTreeSet, fmt::Display, sync::Arc, time::Duration};

use porch_fn_backoff::{Backoff, spread};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

/// Mean waits between failures: from about the first to about the second, doubling.
const RETRY_FROM: Duration = Duration::from_millis(500);
const RETRY_TO: Duration = Duration::from_secs(10);

/// The servers of a target at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Counts the sets. 0: there was no answer yet, and `endpoints` is empty for that reason.
    pub generation: u64,
    /// `host:port`, an IPv6 address in brackets; sorted, each once.
    pub endpoints: Arc<[String]>,
    /// What is wrong with the last answer: there was none, or it is of something that does not exist. A change of
    /// this alone is visible to who looks, but wakes nobody.
    pub last_error: Option<Arc<str>>,
}

/// Publishes what one target's answers say, and logs what changes.
#[derive(Debug)]
pub(super) struct Publisher {
    /// The target, for the log.
    label: String,
    sender: Arc<watch::Sender<Snapshot>>,
    failing: Option<Failing>,
    /// What the last good answer left to be wished for.
    hint: Option<Arc<str>>,
}

/// A row of failures.
#[derive(Debug)]
struct Failing {
    since: Instant,
    attempts: u32,
    backoff: Backoff,
}

// === impl Snapshot ===

impl Snapshot {
    /// Whether there was an answer, possibly an empty one. From then on a router may serve.
    pub fn is_answered(&self) -> bool {
        self.generation > 0
    }
}

// === impl Publisher ===

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

    /// Asking works. `hint` says why there is nothing to be had, if that is known.
    pub(super) fn works(&mut self, hint: Option<Arc<str>>) {
        if let Some(failing) = self.failing.take() {
            let (attempts, after) = (failing.attempts, failing.since.elapsed());
            info!(discovery = %self.label, attempts, ?after, "discovery works again");
        }
        if let Some(hint) = hint.as_ref().filter(|_| self.hint.is_none()) {
            warn!(discovery = %self.label, "no endpoints: {hint}");
        }
        self.hint.clone_from(&hint);
        self.sender.send_if_modified(|snapshot| {
            snapshot.last_error = hint;
            false
        });
    }

    /// These are the endpoints, whether they changed or not.
    pub(super) fn publish(&mut self, endpoints: Arc<[String]>) {
        self.sender.send_if_modified(|snapshot| {
            if snapshot.is_answered() && snapshot.endpoints == endpoints {
                return false;
            }
            let (added, removed) = (
                missing_from(&snapshot.endpoints, &endpoints),
                missing_from(&endpoints, &snapshot.endpoints),
            );
            info!(discovery = %self.label, endpoints = endpoints.len(), added, removed, "endpoints changed");
            snapshot.generation += 1;
            snapshot.endpoints = endpoints;
            true
        });
    }

    /// Notes a failure; the last set stays. Returns how long to wait before the next attempt.
    pub(super) fn failed(&mut self, error: &dyn Display) -> Duration {
        let first = self.failing.is_none();
        let failing = self.failing.get_or_insert_with(|| Failing {
            since: Instant::now(),
            attempts: 0,
            backoff: Backoff::new(RETRY_FROM, RETRY_TO),
        });
        failing.attempts = failing.attempts.saturating_add(1);
        // Many routers must not come back to a recovering server at once.
        let wait = spread(failing.backoff.next_pause(), 0.5..1.5);
        self.sender.send_if_modified(|snapshot| {
            if first {
                let kept = snapshot.endpoints.len();
                warn!(discovery = %self.label, %error, kept, "discovery fails: keeping the last endpoints");
            }
            snapshot.last_error = Some(error.to_string().into());
            false
        });
        wait
    }
}

/// In order, each once.
pub(super) fn sorted(endpoints: impl Iterator<Item = String>) -> Arc<[String]> {
    endpoints.collect::<BTreeSet<_>>().into_iter().collect()
}

/// How many of `new` are not in `old`; both are sorted.
fn missing_from(old: &[String], new: &[String]) -> usize {
    new.iter().filter(|endpoint| old.binary_search(endpoint).is_err()).count()
}
