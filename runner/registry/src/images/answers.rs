//! The last answer to each question, within bounds, and one lookup at a time for each.
//!
//! moka bounds the entries by weight and evicts the least recently used. Its clock cannot be
//! paused, it keeps neither errors nor old values, and its single flight ends with the caller. So
//! age, failures and the lock of a lookup are in the entry.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::RegistryError;

/// What the answers of one kind take in memory, in bytes: callers choose registries and questions.
const MAX_BYTES: usize = 64 << 20;
/// How long a failure that may be over soon is remembered.
const TRANSIENT: Duration = Duration::from_secs(1);

pub(super) type Answer<V> = Result<Arc<V>, RegistryError>;

/// What an answer takes in memory.
pub(super) trait Weigh: fmt::Debug + Send + Sync + 'static {
    /// About so many bytes.
    fn bytes(&self) -> usize;
}

/// Answers by question.
#[derive(Debug)]
pub(super) struct Answers<V: Weigh> {
    entries: Cache<String, Arc<AnswerEntry<V>>>,
    negative_ttl: Duration,
}

/// One question.
#[derive(Debug)]
pub(super) struct AnswerEntry<V> {
    last: Mutex<LastAnswer<V>>,
    /// Held during a lookup; the others wait for its answer.
    pub(super) asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct LastAnswer<V> {
    known: Option<Arc<V>>,
    /// When the registry last confirmed what is known; `None` if a pod found it wrong.
    confirmed: Option<Instant>,
    /// Why there is no newer answer, and until when nobody asks again.
    failed: Option<(RegistryError, Instant)>,
}

// === impl Answers ===

impl<V: Weigh> Answers<V> {
    pub(super) fn new(max_entries: NonZeroUsize, negative_ttl: Duration) -> Self {
        // Each entry counts at least its share of the bytes, so one bound holds for both.
        let share = MAX_BYTES / max_entries;
        let entries = Cache::builder()
            .max_capacity(MAX_BYTES as u64)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(move |key: &String, entry: &Arc<AnswerEntry<V>>| {
                u32::try_from((key.len() + entry.bytes()).max(share)).unwrap_or(u32::MAX)
            })
            .build();
        Self { entries, negative_ttl }
    }

    pub(super) fn entry(&self, key: &str) -> Arc<AnswerEntry<V>> {
        self.entries.get_with_by_ref(key, || Arc::new(AnswerEntry::new()))
    }

    /// The last answer, however old.
    pub(super) fn known(&self, key: &str) -> Option<Arc<V>> {
        self.entries.get(key)?.known()
    }

    /// Marks the last answer as wrong: it holds only until the registry answers again.
    pub(super) fn distrust(&self, key: &str) {
        if let Some(entry) = self.entries.get(key) {
            entry.last.lock().confirmed = None;
        }
    }

    /// Remembers the answer. A failure leaves what is known.
    pub(super) fn record(&self, key: String, entry: Arc<AnswerEntry<V>>, answer: &Answer<V>) {
        let now = Instant::now();
        {
            let mut last = entry.last.lock();
            match answer {
                Ok(known) => {
                    *last = LastAnswer { known: Some(Arc::clone(known)), confirmed: Some(now), failed: None };
                }
                Err(error) => {
                    // If something is known, nobody waits for the registry to recover.
                    let is_short = last.known.is_none() && is_transient(error);
                    let pause = if is_short { self.negative_ttl.min(TRANSIENT) } else { self.negative_ttl };
                    last.failed = Some((error.clone(), now + pause));
                }
            }
        }
        // Weighs it again.
        self.entries.insert(key, entry);
        self.entries.run_pending_tasks();
    }
}

/// Whether the failure may be over soon, although nobody changes anything at the registry.
fn is_transient(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable | RegistryError::Busy { .. } | RegistryError::Credentials(_))
}

// === impl AnswerEntry ===

impl<V: Weigh> AnswerEntry<V> {
    fn new() -> Self {
        let last = LastAnswer { known: None, confirmed: None, failed: None };
        Self { last: Mutex::new(last), asking: Arc::default() }
    }

    pub(super) fn known(&self) -> Option<Arc<V>> {
        self.last.lock().known.clone()
    }

    /// An answer younger than `max_age`, or a failure of a moment ago; `None` if a lookup is due.
    pub(super) fn answer(&self, max_age: Duration) -> Option<Answer<V>> {
        let last = self.last.lock();
        if let (Some(known), Some(confirmed)) = (&last.known, last.confirmed)
            && confirmed.elapsed() < max_age
        {
            return Some(Ok(Arc::clone(known)));
        }
        let (error, until) = last.failed.as_ref()?;
        (Instant::now() < *until).then(|| Err(error.clone()))
    }

    /// A failure's text is short.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.known().map_or(0, |known| known.bytes())
    }
}
