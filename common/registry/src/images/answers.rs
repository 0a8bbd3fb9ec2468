//! The last answer to each question, in a bounded cache, and a lock that allows one lookup per
//! question.
//!
//! moka limits the entries by weight and evicts the least recently used. It cannot cache errors,
//! keep expired values, or finish a lookup after its caller is cancelled, and tests cannot pause
//! its clock. So each entry itself holds its age, its last failure and a lock for the lookup.

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

/// Largest number of answers of one kind. A limit is needed because callers choose the images.
const MAX_ENTRIES: usize = 10_000;
/// Largest size of the answers of one kind in memory, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// How long a failure is cached.
pub(super) const NEGATIVE_TTL: Duration = Duration::from_secs(10);
/// How long a failure is cached if it may end soon and there is no previous answer.
const TRANSIENT_TTL: Duration = Duration::from_secs(1);
/// Largest number of changes that are kept for a slow receiver.
const MAX_CHANGES: usize = 1024;

pub(super) type Answer<V> = Result<Arc<V>, RegistryError>;

/// A question to a registry, identified by the type of its answer.
pub(super) trait Question: fmt::Debug + Send + Sync + Sized + 'static {
    /// The cache key. Images with the same key have the same answer.
    fn key(image: &Image) -> &str;

    /// Asks the registry. Returns `known` itself if it is still valid.
    fn ask(
        registry: Arc<dyn Registry>,
        image: &Image,
        known: Option<Arc<Self>>,
    ) -> impl Future<Output = Answer<Self>> + Send;

    /// The approximate size of the answer in memory, in bytes.
    fn bytes(&self) -> usize;
}

/// Answers by question.
#[derive(Debug)]
pub(super) struct Answers<V: Question> {
    entries: Cache<String, Arc<AnswerEntry<V>>>,
    /// Sends the images that have a new answer.
    pub(super) changes: broadcast::Sender<Image>,
}

/// The state of one question.
#[derive(Debug)]
pub(super) struct AnswerEntry<V> {
    last: Mutex<LastAnswer<V>>,
    /// Locked during a lookup; other callers wait for its answer.
    pub(super) asking: Arc<AsyncMutex<()>>,
}

#[derive(Debug)]
struct LastAnswer<V> {
    known: Option<Arc<V>>,
    /// When the registry last confirmed `known`. `None` if there is no answer, or if a pod
    /// created with `known` failed.
    confirmed: Option<Instant>,
    /// The last lookup's error, and the time until which no lookup is started.
    failed: Option<(RegistryError, Instant)>,
}

// === impl Answers ===

impl<V: Question> Answers<V> {
    pub(super) fn new() -> Self {
        // Each entry weighs at least `MAX_BYTES / MAX_ENTRIES`, so this one limit also limits the
        // number of entries.
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
        let last = || Mutex::new(LastAnswer { known: None, confirmed: None, failed: None });
        let new = || Arc::new(AnswerEntry { last: last(), asking: Arc::default() });
        self.entries.get_with_by_ref(V::key(image), new)
    }

    /// The last answer, however old.
    pub(super) fn known(&self, image: &Image) -> Option<Arc<V>> {
        self.entries.get(V::key(image))?.known()
    }

    /// Marks the last answer as wrong, so the next question starts a lookup, unless a failure is
    /// cached.
    pub(super) fn distrust(&self, image: &Image) {
        if let Some(entry) = self.entries.get(V::key(image)) {
            entry.last.lock().confirmed = None;
        }
    }

    /// Stores the answer. A failure keeps the previous answer.
    pub(super) fn record(&self, image: &Image, entry: Arc<AnswerEntry<V>>, answer: &Answer<V>) {
        let mut last = entry.last.lock();
        let mut is_new = false;
        match answer {
            Ok(new) => {
                is_new = last.known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, new));
                let confirmed = Some(Instant::now());
                *last = LastAnswer { known: Some(Arc::clone(new)), confirmed, failed: None };
            }
            Err(error) => {
                // If there is a previous answer, callers get that answer. So a longer pause does no
                // harm.
                let is_short = last.known.is_none() && is_transient(error);
                let pause = if is_short { TRANSIENT_TTL } else { NEGATIVE_TTL };
                last.failed = Some((error.clone(), Instant::now() + pause));
            }
        }
        // The cache locks the entry to weigh it.
        drop(last);
        // Inserting the entry again updates its weight.
        self.entries.insert(V::key(image).to_owned(), entry);
        self.entries.run_pending_tasks();
        if is_new {
            // Fails only if there is no receiver.
            let _ = self.changes.send(image.clone());
        }
    }
}

// === impl AnswerEntry ===

impl<V> AnswerEntry<V> {
    pub(super) fn known(&self) -> Option<Arc<V>> {
        self.last.lock().known.clone()
    }

    /// Returns an answer younger than `max_age`, or a recent failure; `None` if a lookup is needed.
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
}

/// Whether the failure may end soon without a change at the registry.
fn is_transient(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable | RegistryError::Busy(_) | RegistryError::Credentials(_))
}
