//! Which objects are due for a write, and when. Pure.
//!
//! After each write to an object the next one waits, twice as long each time, until the object has
//! been left alone. Another writer of the same field would answer each of our writes with its own,
//! without end.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// Pauses between writes to the same object, doubling.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(5);

/// Names of objects, each at most once.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    due: BTreeMap<String, Instant>,
    written: HashMap<String, LastWrite>,
}

#[derive(Debug, Clone, Copy)]
struct LastWrite {
    at: Instant,
    /// The time until the next write.
    pause: Duration,
}

// === impl WriteQueue ===

impl WriteQueue {
    /// Has `name` looked at, now or at the end of its pause.
    pub(super) fn add(&mut self, name: &str, now: Instant) {
        let at = self.written.get(name).map_or(now, |last| last.at + last.pause);
        self.due.insert(name.to_owned(), at.max(now));
    }

    /// The object does not exist any more.
    pub(super) fn remove(&mut self, name: &str) {
        self.due.remove(name);
        self.written.remove(name);
    }

    /// The first name that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<String> {
        let name = self.due.iter().find(|(_, at)| **at <= now)?.0.clone();
        self.due.remove(&name);
        Some(name)
    }

    /// When the next name is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// A write to `name` has ended. A failed one is repeated.
    pub(super) fn record_write(&mut self, name: &str, succeeded: bool, now: Instant) {
        let last = self.written.get(name).filter(|last| now < last.at + 2 * last.pause);
        let pause = last.map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LAST_PAUSE));
        self.written.insert(name.to_owned(), LastWrite { at: now, pause });
        if !succeeded || self.due.contains_key(name) {
            self.add(name, now);
        }
    }
}
