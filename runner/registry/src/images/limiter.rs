//! How many lookups run at once. Callers name registries, and some registries hang. So the lookups
//! of one registry, and of all registries below one domain, are bounded, and half of the places are
//! reserved for registries that have answered before. A lookup waits for its registry's place
//! first, so that it holds no place that another registry needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::lru;

/// Lookups at once, of all registries.
pub(super) const MAX_LOOKUPS: usize = 64;
/// Lookups at once, of registries that have never answered.
const MAX_UNPROVEN: usize = MAX_LOOKUPS / 2;
/// Lookups at once, of all registries below one domain: names of hosts are free.
pub(super) const MAX_PER_DOMAIN: usize = 8;
/// Lookups at once, of one registry.
pub(super) const MAX_PER_REGISTRY: usize = 4;
/// Registries, and domains, that are remembered.
const MAX_REMEMBERED: u64 = 1024;
/// An unreachable registry that took this long ran out of time; it did not refuse.
const HANGING: Duration = Duration::from_secs(4);
/// How long a registry that ran out of time gets no lookup.
const COOLDOWN: Duration = Duration::from_secs(3);

/// Bounds the lookups per registry, per domain, of unproven registries, and of all.
#[derive(Debug)]
pub(super) struct LookupLimiter {
    registries: Cache<String, Arc<RegistryLimit>>,
    domains: Cache<String, Arc<Semaphore>>,
    unproven: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

#[derive(Debug)]
struct RegistryLimit {
    places: Arc<Semaphore>,
    has_answered: AtomicBool,
    ran_out_of_time: Mutex<Option<Instant>>,
}

/// The right to one lookup.
#[derive(Debug)]
pub(super) struct LookupPermit {
    limit: Arc<RegistryLimit>,
    began: Instant,
    _places: Vec<OwnedSemaphorePermit>,
}

// === impl LookupLimiter ===

impl LookupLimiter {
    pub(super) fn new() -> Self {
        Self {
            registries: lru(MAX_REMEMBERED),
            domains: lru(MAX_REMEMBERED),
            unproven: Arc::new(Semaphore::new(MAX_UNPROVEN)),
            all: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }

    /// Waits for a place. `None` if the registry is cooling down, because it ran out of time.
    pub(super) async fn acquire(&self, registry: &str) -> Option<LookupPermit> {
        let limit = self.registries.get_with_by_ref(registry, || Arc::new(RegistryLimit::new()));
        if limit.is_cooling_down() {
            return None;
        }
        // Nothing closes the semaphores.
        let of_registry = Arc::clone(&limit.places).acquire_owned().await.ok()?;
        // The lookup before this one may have run out of time.
        if limit.is_cooling_down() {
            return None;
        }
        let of_domain =
            self.domains.get_with_by_ref(domain(registry), || Arc::new(Semaphore::new(MAX_PER_DOMAIN)));
        let is_proven = limit.has_answered.load(Ordering::Relaxed);
        let unproven = (!is_proven).then(|| Arc::clone(&self.unproven));
        let mut places = vec![of_registry];
        // The scarcest for all registries comes last.
        for semaphore in [Some(of_domain), unproven, Some(Arc::clone(&self.all))].into_iter().flatten() {
            places.push(semaphore.acquire_owned().await.ok()?);
        }
        Some(LookupPermit { limit, began: Instant::now(), _places: places })
    }
}

/// The registrable domain, approximated by the last two labels. An address is its own domain.
fn domain(registry: &str) -> &str {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _port)| host);
    let last = host.rsplit('.').next().unwrap_or(host);
    if host.starts_with('[') || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return host;
    }
    let two = host.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    &host[two..]
}

// === impl RegistryLimit ===

impl RegistryLimit {
    fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_PER_REGISTRY)),
            has_answered: AtomicBool::default(),
            ran_out_of_time: Mutex::default(),
        }
    }

    fn is_cooling_down(&self) -> bool {
        self.ran_out_of_time.lock().is_some_and(|at| at.elapsed() < COOLDOWN)
    }
}

// === impl LookupPermit ===

impl LookupPermit {
    /// Records whether the registry answered, be it with an error, and frees the place.
    pub(super) fn finish(self, answered: bool) {
        if answered {
            self.limit.has_answered.store(true, Ordering::Relaxed);
            *self.limit.ran_out_of_time.lock() = None;
        } else if self.began.elapsed() >= HANGING {
            *self.limit.ran_out_of_time.lock() = Some(Instant::now());
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
