//! Remembers answers within bounds, and sees to it that each question is asked once at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, watch};
use tokio::time::Instant;

use super::gates::Turn;
use crate::RegistryError;

/// All that one memory holds, in bytes: answers come from whatever registry a caller names.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long a failure is remembered that may be over soon.
const TRANSIENT: Duration = Duration::from_secs(1);

pub(super) type Answer<V> = Result<Arc<V>, RegistryError>;

/// What an answer takes in memory.
pub(super) trait Weigh {
    /// About so many bytes.
    fn bytes(&self) -> usize;
}

/// Answers by question; the least recently wanted go first.
#[derive(Debug)]
pub(super) struct Memory<V: Weigh> {
    state: Mutex<State<V>>,
    max_entries: usize,
    negative_ttl: Duration,
}

#[derive(Debug)]
struct State<V> {
    entries: LruCache<Arc<str>, Entry<V>>,
    /// Of all entries.
    bytes: usize,
    /// Not among the entries: those may be evicted meanwhile.
    asking: HashMap<Arc<str>, Shared<V>>,
    /// Where those stand in line who want the same asked, and how many they are.
    lines: HashMap<Arc<str>, (Arc<tokio::sync::Mutex<()>>, usize)>,
}

#[derive(Debug)]
struct Entry<V> {
    /// The last answer, and when it was last found to hold.
    known: Option<(Arc<V>, Instant)>,
    /// It did not prove true: no age is young enough.
    doubtful: bool,
    /// Why there was none since, and until when that is said again.
    failed: Option<(RegistryError, Instant)>,
}

/// The answer to come, for all who wait for it.
#[derive(Debug)]
pub(super) struct Shared<V>(watch::Receiver<Option<Answer<V>>>);

/// How things stand with one question.
#[derive(Debug)]
pub(super) enum Look<V: Weigh> {
    /// Known, and young enough.
    Fresh(Arc<V>),
    /// Asked a moment ago, in vain.
    Failed(RegistryError),
    /// Another asks right now.
    Asked(Shared<V>),
    /// To be asked, for which it has to be one's turn.
    Due,
    /// To be asked by whoever looked.
    Ask(Asking<V>),
}

/// A place in line, which is left when it is dropped.
#[derive(Debug)]
pub(super) struct Place<V: Weigh> {
    memory: Arc<Memory<V>>,
    key: Arc<str>,
    line: Arc<tokio::sync::Mutex<()>>,
}

/// The right to ask, and the duty to say what came of it. Dropped, it ends without an answer.
#[derive(Debug)]
pub(super) struct Asking<V: Weigh> {
    memory: Arc<Memory<V>>,
    key: Arc<str>,
    /// What was known before.
    pub(super) known: Option<Arc<V>>,
    answer: watch::Sender<Option<Answer<V>>>,
    turn: Turn,
}

// === impl Memory ===

impl<V: Weigh> Memory<V> {
    pub(super) fn new(max_entries: usize, negative_ttl: Duration) -> Self {
        let state =
            State { entries: LruCache::unbounded(), bytes: 0, asking: HashMap::new(), lines: HashMap::new() };
        Self { state: Mutex::new(state), max_entries, negative_ttl }
    }

    /// The last answer, however old.
    pub(super) fn known(&self, key: &str) -> Option<Arc<V>> {
        let mut state = self.state.lock();
        let (known, _) = state.entries.get(key)?.known.as_ref()?;
        Some(Arc::clone(known))
    }

    /// Remembers an answer that came another way, unless somebody asks right now. Returns whether it did.
    pub(super) fn learn(&self, key: &str, value: Arc<V>) -> bool {
        let key: Arc<str> = key.into();
        if self.state.lock().asking.contains_key(&key) {
            return false;
        }
        self.remember(&key, &Ok(value));
        true
    }

    /// The last answer did not prove true: it holds only until there is another, or the same again.
    pub(super) fn distrust(&self, key: &str) {
        // Not wanted now, so it is no younger for that.
        if let Some(entry) = self.state.lock().entries.peek_mut(key) {
            entry.doubtful = true;
        }
    }

    /// What is to be done for an answer younger than `max_age`. With a turn it is never [`Look::Due`].
    pub(super) fn look(self: &Arc<Self>, key: &str, max_age: Duration, turn: Option<Turn>) -> Look<V> {
        let mut state = self.state.lock();
        let entry = state.entries.get(key);
        let known = entry.and_then(|entry| entry.known.as_ref());
        if let Some((known, held)) = known
            && held.elapsed() < max_age
            && !entry.is_some_and(|entry| entry.doubtful)
        {
            return Look::Fresh(Arc::clone(known));
        }
        if let Some((error, until)) = entry.and_then(|entry| entry.failed.as_ref())
            && Instant::now() < *until
        {
            return Look::Failed(error.clone());
        }
        let known = known.map(|(known, _)| Arc::clone(known));
        if let Some(shared) = state.asking.get(key) {
            return Look::Asked(shared.clone());
        }
        let Some(turn) = turn else { return Look::Due };
        let key: Arc<str> = key.into();
        let (answer, shared) = watch::channel(None);
        state.asking.insert(Arc::clone(&key), Shared(shared));
        Look::Ask(Asking { memory: Arc::clone(self), key, known, answer, turn })
    }

    /// Whether nobody asks or waits.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.asking.is_empty() && state.lines.is_empty()
    }

    /// For a question that is due: one waits for a turn, and the others for what comes of that.
    pub(super) fn line_up(self: &Arc<Self>, key: &str) -> Place<V> {
        let mut state = self.state.lock();
        let key: Arc<str> = key.into();
        let (line, count) = state.lines.entry(Arc::clone(&key)).or_default();
        *count += 1;
        Place { memory: Arc::clone(self), key, line: Arc::clone(line) }
    }

    fn remember(&self, key: &Arc<str>, answer: &Answer<V>) {
        let mut state = self.state.lock();
        let old = state.entries.pop(key);
        state.bytes -= old.as_ref().map_or(0, |old| old.bytes(key));
        let now = Instant::now();
        let entry = match answer {
            Ok(known) => Entry { known: Some((Arc::clone(known), now)), doubtful: false, failed: None },
            Err(error) => {
                let doubtful = old.as_ref().is_some_and(|old| old.doubtful);
                let known = old.and_then(|old| old.known);
                // Where something is known nobody waits for a registry to recover.
                let pause = if known.is_none() && is_transient(error) {
                    self.negative_ttl.min(TRANSIENT)
                } else {
                    self.negative_ttl
                };
                Entry { known, doubtful, failed: Some((error.clone(), now + pause)) }
            }
        };
        state.bytes += entry.bytes(key);
        state.entries.put(Arc::clone(key), entry);
        // One stays, whatever its size: it is wanted now.
        while state.entries.len() > 1 && (state.entries.len() > self.max_entries || state.bytes > MAX_BYTES) {
            let Some((key, evicted)) = state.entries.pop_lru() else { break };
            state.bytes -= evicted.bytes(&key);
        }
    }
}

/// What may be over soon, without anything being changed at the registry.
fn is_transient(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable | RegistryError::Busy { .. } | RegistryError::Credentials(_))
}

// === impl Entry ===

impl<V: Weigh> Entry<V> {
    /// The same as long as the entry is, so that the sum comes out even.
    fn bytes(&self, key: &str) -> usize {
        let known = self.known.as_ref().map_or(0, |(known, _)| known.bytes());
        let failed = match &self.failed {
            Some((RegistryError::Malformed { reason: text, .. } | RegistryError::Credentials(text), _)) => {
                text.len()
            }
            _ => 0,
        };
        size_of::<Self>() + key.len() + known + failed
    }
}

// === impl Shared ===

impl<V> Shared<V> {
    /// Waits. An asker that died has not reached the registry.
    pub(super) async fn answer(mut self) -> Answer<V> {
        let answer = self.0.wait_for(Option::is_some).await;
        answer.ok().and_then(|answer| answer.clone()).unwrap_or(Err(RegistryError::Unreachable))
    }
}

impl<V> Clone for Shared<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

// === impl Place ===

impl<V: Weigh> Place<V> {
    /// Waits until all who came before have asked, or have gone away.
    pub(super) async fn first(&self) -> MutexGuard<'_, ()> {
        self.line.lock().await
    }
}

impl<V: Weigh> Drop for Place<V> {
    fn drop(&mut self) {
        let lines = &mut self.memory.state.lock().lines;
        if let Some((_, count)) = lines.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

// === impl Asking ===

impl<V: Weigh> Asking<V> {
    pub(super) fn shared(&self) -> Shared<V> {
        Shared(self.answer.subscribe())
    }

    /// Remembers the answer, and gives it to all who wait.
    pub(super) fn end(self, answer: Answer<V>) {
        self.turn.end(!matches!(answer, Err(RegistryError::Unreachable)));
        self.memory.remember(&self.key, &answer);
        self.answer.send_replace(Some(answer));
    }
}

impl<V: Weigh> Drop for Asking<V> {
    fn drop(&mut self) {
        self.memory.state.lock().asking.remove(&self.key);
    }
}
