//! Whose turn it is to ask. Few questions at once go to each registry, and who waits for one holds nothing that others
//! need: registries are input of callers, and some hang.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::peer::PER_REGISTRY;

/// Questions to all registries at once; more wait for their turn.
pub(super) const MAX_AT_ONCE: usize = 64;
/// Registries that are remembered.
const MAX_REGISTRIES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// A question without an answer for so long was not refused: it ran out of time.
const SLOW: Duration = Duration::from_secs(4);
/// How long after that the registry is not asked.
const PAUSE: Duration = Duration::from_secs(3);

/// One gate for each registry, and one behind them all.
#[derive(Debug)]
pub(super) struct Gates {
    registries: Mutex<LruCache<String, Arc<Gate>>>,
    all: Arc<Semaphore>,
}

#[derive(Debug)]
struct Gate {
    permits: Arc<Semaphore>,
    /// When the last question ran out of time.
    hung: Mutex<Option<Instant>>,
}

/// The right to ask one registry one question.
#[derive(Debug)]
pub(super) struct Turn {
    gate: Arc<Gate>,
    began: Instant,
    _permits: [OwnedSemaphorePermit; 2],
}

// === impl Gates ===

impl Gates {
    pub(super) fn new() -> Self {
        Self {
            registries: Mutex::new(LruCache::new(MAX_REGISTRIES)),
            all: Arc::new(Semaphore::new(MAX_AT_ONCE)),
        }
    }

    /// Waits for a turn; `None` once the registry has let a question run out of time a moment ago.
    pub(super) async fn turn(&self, registry: &str) -> Option<Turn> {
        let gate = self.gate(registry);
        if gate.hung_lately() {
            return None;
        }
        // Nothing closes the semaphores.
        let of_registry = Arc::clone(&gate.permits).acquire_owned().await.ok()?;
        // Those who waited for the question that hung are told at once, one after the other.
        if gate.hung_lately() {
            return None;
        }
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { gate, began: Instant::now(), _permits: [of_registry, of_all] })
    }

    /// A turn if there is one right now.
    pub(super) fn try_turn(&self, registry: &str) -> Option<Turn> {
        let gate = self.gate(registry);
        if gate.hung_lately() {
            return None;
        }
        let of_registry = Arc::clone(&gate.permits).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Turn { gate, began: Instant::now(), _permits: [of_registry, of_all] })
    }

    fn gate(&self, registry: &str) -> Arc<Gate> {
        let mut registries = self.registries.lock();
        if let Some(gate) = registries.get(registry) {
            return Arc::clone(gate);
        }
        let gate = Arc::new(Gate { permits: Arc::new(Semaphore::new(PER_REGISTRY)), hung: Mutex::new(None) });
        registries.put(registry.to_owned(), Arc::clone(&gate));
        gate
    }
}

// === impl Gate ===

impl Gate {
    fn hung_lately(&self) -> bool {
        self.hung.lock().is_some_and(|at| at.elapsed() < PAUSE)
    }
}

// === impl Turn ===

impl Turn {
    /// The registry has answered, whatever it said, or it has not.
    pub(super) fn end(&self, answered: bool) {
        let mut hung = self.gate.hung.lock();
        if answered {
            *hung = None;
        } else if self.began.elapsed() >= SLOW {
            *hung = Some(Instant::now());
        }
    }
}
