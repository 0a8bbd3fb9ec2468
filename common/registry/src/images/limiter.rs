//! Limits concurrent lookups. A place is the right to run one lookup. Callers choose the
//! registries, and some registries hang. So each registry and each domain has a limited number of
//! places. Half of all places are reserved for registries that have answered before. A lookup takes
//! a place of its registry first. While it waits for that place, it holds no place that another
//! registry needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::lru;

/// Largest number of concurrent lookups, for all registries.
pub(super) const MAX_LOOKUPS: usize = 64;
/// Largest number of concurrent lookups, for registries that have never answered.
const MAX_UNPROVEN: usize = MAX_LOOKUPS / 2;
/// Largest number of concurrent lookups per domain. A limit per registry is not enough, because the
/// domain's owner can create any number of host names.
pub(super) const MAX_PER_DOMAIN: usize = 8;
/// Largest number of concurrent lookups per registry.
pub(super) const MAX_PER_REGISTRY: usize = 4;
/// Largest number of registries, and of domains, whose limits are kept.
const MAX_REMEMBERED: u64 = 1024;
/// A failed lookup that took this long counts as a timeout, not as a refused connection.
const HANGING: Duration = Duration::from_secs(4);
/// How long the runner sends no lookup to a registry after a timeout.
const COOLDOWN: Duration = Duration::from_secs(3);

/// Limits the lookups per registry, per domain, for registries that never answered, and in total.
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

    /// Waits for a place. Returns `None` if the registry is cooling down after a timeout.
    pub(super) async fn acquire(&self, registry: &str) -> Option<LookupPermit> {
        let new = || RegistryLimit {
            places: Arc::new(Semaphore::new(MAX_PER_REGISTRY)),
            has_answered: AtomicBool::default(),
            ran_out_of_time: Mutex::default(),
        };
        let limit = self.registries.get_with_by_ref(registry, || Arc::new(new()));
        // `acquire_owned` fails only if its semaphore is closed, and nothing closes these. While
        // the registry is cooling down, no lookup waits here for long. The lookup that timed out
        // has freed its place. A waiting lookup takes this place, returns below, and so frees it
        // for the next one.
        let of_registry = Arc::clone(&limit.places).acquire_owned().await.ok()?;
        if limit.ran_out_of_time.lock().is_some_and(|at| at.elapsed() < COOLDOWN) {
            return None;
        }
        let of_domain =
            self.domains.get_with_by_ref(domain(registry), || Arc::new(Semaphore::new(MAX_PER_DOMAIN)));
        let is_proven = limit.has_answered.load(Ordering::Relaxed);
        let unproven = (!is_proven).then(|| Arc::clone(&self.unproven));
        let mut places = vec![of_registry];
        // The places that all registries share are taken last.
        for semaphore in [Some(of_domain), unproven, Some(Arc::clone(&self.all))].into_iter().flatten() {
            places.push(semaphore.acquire_owned().await.ok()?);
        }
        Some(LookupPermit { limit, began: Instant::now(), _places: places })
    }
}

/// The registrable domain, approximated by the last two labels. An IP address is its own domain.
fn domain(registry: &str) -> &str {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _port)| host);
    let last = host.rsplit('.').next().unwrap_or(host);
    if host.starts_with('[') || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return host;
    }
    let two = host.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    &host[two..]
}

// === impl LookupPermit ===

impl LookupPermit {
    /// Records whether the registry answered (an error is an answer too), and frees the place.
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
    fn the_domain_is_the_last_two_labels_or_the_address() {
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
