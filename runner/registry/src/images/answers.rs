//! The last answer to each question, within bounds, and one lookup at a time for each.
//!
//! moka bounds the entries by weight and evicts the least recently used. Its clock cannot be
//! paused, it keeps neither errors nor old values, and its single flight ends with the caller. So
//! age, failures and the lock of a lookup are in the entry.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use porch_fn_image::Image;
use tokio::sync::{Mutex as AsyncMutex, broadcast};
use tokio::time::Instant;

use crate::{Registry, RegistryError};

/// Answers of one kind. Callers choose images, and so registries and repositories.
const MAX_ENTRIES: usize = 10_000;
/// The bytes that they take in memory.
const MAX_BYTES: usize = 64 << 20;
/// How long a failure is reported without asking again.
pub(super) const NEGATIVE_TTL: Duration = Duration::from_secs(10);
/// The same for a failure that may be over soon.
const TRANSIENT_TTL: Duration = Duration::from_secs(1);
/// Changes that a receiver may not have taken yet.
const MAX_CHANGES: usize = 1024;

pub(super) type Answer<V> = Result<Arc<V>, RegistryError>;

/// What a registry is asked, by its answer.
pub(super) trait Question: fmt::Debug + Send + Sync + Sized + 'static {
    /// What images have in common that have the same answer.
    fn key(image: &Image) -> &str;

    /// Asks. The answer is `known` itself while that holds.
    fn ask(
        registry: Arc<dyn Registry>,
        image: &Image,
        known: Option<Arc<Self>>,
    ) -> impl Future<Output = Answer<Self>> + Send;

    /// About the bytes that the answer takes in memory.
    fn bytes(&self) -> usize;
}

/// Answers by question.
#[derive(Debug)]
pub(super) struct Answers<V: Question> {
    entries: Cache<String, Arc<AnswerEntry<V>>>,
    /// Images with a new answer.
    pub(super) changes: broadcast::Sender<Image>,
}

/// One question.
#[derive(Debug)]
pub(super) struct AnswerEntry<V> {
    last: Mutex<LastAnswer<V>>,
    /// Held during a lookup; the others wait for its answer.
    pub(super) asking: Arc<AsyncMutex<()>>,
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

impl<V: Question> Answers<V> {
    pub(super) fn new() -> Self {
        // Each entry counts at least its share of the bytes, so one bound holds for both.
        let weight = |key: &String, entry: &Arc<AnswerEntry<V>>| {
            let bytes =
                key.len() + size_of::<AnswerEntry<V>>() + entry.known().map_or(0, |known| known.bytes());
            u32::try_from(bytes.max(MAX_BYTES / MAX_ENTRIES)).unwrap_or(u32::MAX)
        };
        let entries = Cache::builder().max_capacity(MAX_BYTES as u64).weigher(weight);
        let entries = entries.eviction_policy(EvictionPolicy::lru()).build();
        Self { entries, changes: broadcast::Sender::new(MAX_CHANGES) }
    }

    pub(super) fn entry(&self, image: &Image) -> Arc<AnswerEntry<V>> {
        self.entries.get_with_by_ref(V::key(image), || Arc::new(AnswerEntry::new()))
    }

    /// The last answer, however old.
    pub(super) fn known(&self, image: &Image) -> Option<Arc<V>> {
        self.entries.get(V::key(image))?.known()
    }

    /// Marks the last answer as wrong: it holds only until the registry answers again.
    pub(super) fn distrust(&self, image: &Image) {
        if let Some(entry) = self.entries.get(V::key(image)) {
            entry.last.lock().confirmed = None;
        }
    }

    /// Remembers the answer. A failure leaves what is known.
    pub(super) fn record(&self, image: &Image, entry: Arc<AnswerEntry<V>>, answer: &Answer<V>) {
        let is_new = entry.record(answer);
        // Weighs it again.
        self.entries.insert(V::key(image).to_owned(), entry);
        self.entries.run_pending_tasks();
        if is_new {
            // Fails without a receiver.
            let _ = self.changes.send(image.clone());
        }
    }
}

// === impl AnswerEntry ===

impl<V> AnswerEntry<V> {
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

    /// Returns whether the answer is another one than before.
    fn record(&self, answer: &Answer<V>) -> bool {
        let (now, mut last) = (Instant::now(), self.last.lock());
        match answer {
            Ok(new) => {
                let is_new = last.known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, new));
                *last = LastAnswer { known: Some(Arc::clone(new)), confirmed: Some(now), failed: None };
                is_new
            }
            Err(error) => {
                // If something is known, nobody waits for the registry to recover.
                let is_short = last.known.is_none() && is_transient(error);
                last.failed =
                    Some((error.clone(), now + if is_short { TRANSIENT_TTL } else { NEGATIVE_TTL }));
                false
            }
        }
    }
}

/// Whether the failure may be over soon, although nobody changes anything at the registry.
fn is_transient(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable | RegistryError::Busy { .. } | RegistryError::Credentials(_))
}
