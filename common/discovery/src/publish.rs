//! Publishes what discovery found: the complete set of servers, and the last error.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_backoff::{Backoff, spread};
use tokio::sync::watch;
use tracing::{info, warn};

/// Mean pauses after failures: they double from the first to the second value.
const RETRY_FROM: Duration = Duration::from_millis(500);
const RETRY_TO: Duration = Duration::from_secs(10);

/// The servers of a target at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether discovery has received an answer, possibly an empty one. Until then, `endpoints` is
    /// empty and a router does not serve.
    pub is_answered: bool,
    /// `host:port`, with IPv6 addresses in brackets; sorted, without duplicates.
    pub endpoints: Arc<[String]>,
    /// The last error: a request failed, or the target does not exist. A change of only this field
    /// does not notify receivers.
    pub last_error: Option<Arc<str>>,
}

/// Publishes the answers of one target, and logs what changes.
#[derive(Debug)]
pub(super) struct Publisher {
    /// The target, for the log.
    pub(super) label: String,
    sender: Arc<watch::Sender<Snapshot>>,
    /// The pauses while requests fail; `None` after a success.
    pub(super) failing: Option<Backoff>,
}

impl Publisher {
    pub(super) fn new(label: String, sender: Arc<watch::Sender<Snapshot>>) -> Self {
        Self { label, sender, failing: None }
    }

    /// Records that requests succeed. `hint` says why there are no endpoints, if this is known.
    pub(super) fn record_success(&mut self, hint: Option<Arc<str>>) {
        if self.failing.take().is_some() {
            info!(discovery = %self.label, "discovery works again");
        }
        if let Some(text) = &hint
            && self.sender.borrow().last_error != hint
        {
            warn!(discovery = %self.label, "no endpoints: {text}");
        }
        self.set_error(hint);
    }

    /// Records a failed request and keeps the last endpoints. Returns the pause before the next
    /// attempt.
    pub(super) fn record_failure(&mut self, error: &dyn Display) -> Duration {
        let backoff = self.failing.get_or_insert_with(|| {
            let kept = self.sender.borrow().endpoints.len();
            warn!(discovery = %self.label, %error, kept_endpoints = kept, "discovery fails: keeping the last endpoints");
            Backoff::new(RETRY_FROM, RETRY_TO)
        });
        // The pause is random, so that many routers do not query a recovering server at the same
        // moment.
        let wait = spread(backoff.next_pause(), 0.5..1.5);
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
            if std::mem::replace(&mut snapshot.is_answered, true) && snapshot.endpoints == before {
                return false;
            }
            let (before, endpoints) = (before.len(), snapshot.endpoints.len());
            info!(discovery = %self.label, endpoints_before = before, endpoints, "endpoints changed");
            true
        });
    }
}

/// Sorts the endpoints and removes duplicates.
pub(super) fn sorted(endpoints: impl Iterator<Item = String>) -> Arc<[String]> {
    endpoints.collect::<BTreeSet<_>>().into_iter().collect()
}
