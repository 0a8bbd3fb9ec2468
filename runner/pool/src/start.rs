//! A create under way, and the pause between starts.
//!
//! A create's answer and its watch event arrive in any order, and the answer may be lost. The pool
//! therefore remembers a start until both have arrived, or until the time for them has passed.

use std::time::Duration;

use crate::event::Rejection;
use crate::types::{PodName, Time, Uid};

/// Without an answer after this time, the request counts as lost.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// A pod may exist after a create without a clear answer. If the watch does not show the pod within
/// this time, the pool may create it again.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(30);
/// A pause is longer than the previous pause if it begins within this time after the previous one.
const REMEMBER: Duration = Duration::from_mins(1);

/// A create under way.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) name: PodName,
    /// The create was answered without a uid. The watch should show the pod.
    pub(crate) answered: bool,
    /// The pod that the watch shows although the create is not answered yet. While this is `None`,
    /// the start itself counts as a pod.
    pub(crate) shown: Option<Uid>,
    pub(crate) expires_at: Time,
}

/// A pause before the next start. Each further pause is longer, up to [`LAST_BACKOFF`].
#[derive(Debug)]
pub(crate) struct Backoff {
    pub(crate) starts: u32,
    pub(crate) retry_at: Time,
    /// The error for calls during the pause. `None`: the calls wait.
    pub(crate) error: Option<Rejection>,
}

// === impl Start ===

impl Start {
    /// The watch should show the pod soon, if it exists.
    pub(crate) fn await_pod(&mut self, now: Time) {
        (self.answered, self.expires_at) = (true, now + SEEN_WITHIN);
    }
}

// === impl Backoff ===

impl Backoff {
    /// The pause that begins now, longer than the last one.
    pub(crate) fn after(last: Option<&Self>, error: Option<Rejection>, now: Time) -> Self {
        let starts = last.map_or(0, |last| last.starts);
        let delay = FIRST_BACKOFF.saturating_mul(1 << starts.min(5)).min(LAST_BACKOFF);
        Self { starts: starts.saturating_add(1), retry_at: now + delay, error }
    }

    pub(crate) fn forget_at(&self) -> Time {
        self.retry_at + REMEMBER
    }
}
