//! Whose turn it is to ask. Registries are input of callers, and some hang. So a few questions at once go to each
//! registry and to all names of one domain, and half of the places are for registries that have answered before. A
//! question that waits for one place holds none that other registries need.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::peer::PER_REGISTRY;

/// Questions to all registries at once; more wait for their turn.
pub(super) const MAX_AT_ONCE: usize = 64;
/// The same to registries that have never answered.
const MAX_STRANGERS: usize = MAX_AT_ONCE / 2;
/// The same to all registries below one domain: names are free.
pub(super) const PER_DOMAIN: usize = 8;
/// Registries that are remembered, and domains.
const MAX_REGISTRIES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// A question without an answer for so long was not refused: it ran out of time.
const SLOW: Duration = Duration::from_secs(4);
/// How long after that the registry is not asked.
const PAUSE: Duration = Duration::from_secs(3);

/// One gate for each registry, one for each domain, one for strangers, and one behind them all.
#[derive(Debug)]
pub(super) struct Gates {
    registries: Mutex<LruCache<String, Arc<Gate>>>,
    domains: Mutex<LruCache<String, Arc<Semaphore>>>,
    strangers: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

#[derive(Debug)]
struct Gate {
    permits: Arc<Semaphore>,
    of_domain: Arc<Semaphore>,
    has_answered: AtomicBool,
    /// When the last question ran out of time.
    hung: Mutex<Option<Instant>>,
}

/// The right to ask one registry one question.
#[derive(Debug)]
pub(super) struct Turn {
    gate: Arc<Gate>,
    began: Instant,
    _permits: Vec<OwnedSemaphorePermit>,
}

// === impl Gates ===

impl Gates {
    pub(super) fn new() -> Self {
        Self {
            registries: Mutex::new(LruCache::new(MAX_REGISTRIES)),
            domains: Mutex::new(LruCache::new(MAX_REGISTRIES)),
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
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
        let mut permits = vec![of_registry];
        for semaphore in self.behind(&gate) {
            permits.push(semaphore.acquire_owned().await.ok()?);
        }
        Some(Turn { gate, began: Instant::now(), _permits: permits })
    }

    /// A turn if there is one right now.
    pub(super) fn try_turn(&self, registry: &str) -> Option<Turn> {
        let gate = self.gate(registry);
        if gate.hung_lately() {
            return None;
        }
        let mut permits = vec![Arc::clone(&gate.permits).try_acquire_owned().ok()?];
        for semaphore in self.behind(&gate) {
            permits.push(semaphore.try_acquire_owned().ok()?);
        }
        Some(Turn { gate, began: Instant::now(), _permits: permits })
    }

    /// What a question needs beside a place at its registry, in this order: what is scarce for all comes last.
    fn behind(&self, gate: &Gate) -> impl Iterator<Item = Arc<Semaphore>> + use<> {
        let is_stranger = !gate.has_answered.load(Ordering::Relaxed);
        let strangers = is_stranger.then(|| Arc::clone(&self.strangers));
        [Some(Arc::clone(&gate.of_domain)), strangers, Some(Arc::clone(&self.all))].into_iter().flatten()
    }

    fn gate(&self, registry: &str) -> Arc<Gate> {
        let mut registries = self.registries.lock();
        if let Some(gate) = registries.get(registry) {
            return Arc::clone(gate);
        }
        let of_domain = {
            let mut domains = self.domains.lock();
            let new = || Arc::new(Semaphore::new(PER_DOMAIN));
            Arc::clone(domains.get_or_insert(domain(registry).to_owned(), new))
        };
        let gate = Arc::new(Gate {
            permits: Arc::new(Semaphore::new(PER_REGISTRY)),
            of_domain,
            has_answered: AtomicBool::new(false),
            hung: Mutex::new(None),
        });
        registries.put(registry.to_owned(), Arc::clone(&gate));
        gate
    }
}

/// The domain whose owner made the registry's name, near enough: its last two labels. An address is its own.
fn domain(registry: &str) -> &str {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _port)| host);
    let last = host.rsplit('.').next().unwrap_or(host);
    if host.starts_with('[') || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return host;
    }
    let two = host.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    &host[two..]
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
            self.gate.has_answered.store(true, Ordering::Relaxed);
            *hung = None;
        } else if self.began.elapsed() >= SLOW {
            *hung = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_that_of_its_owner() {
        for (registry, expected) in [
            ("ghcr.io", "ghcr.io"),
            ("a.b.example.com:5000", "example.com"),
            ("example.com", "example.com"),
            ("localhost:5000", "localhost"),
            ("10.1.2.3:5000", "10.1.2.3"),
            ("10.1.2.3", "10.1.2.3"),
            ("[fd00::1]:5000", "[fd00::1]"),
        ] {
            assert_eq!(domain(registry), expected, "{registry}");
        }
    }
}
