//! Limits concurrent requests, such as lookups or pulls. A place is the right to run one. Callers
//! choose the registries, and some registries hang. So each registry and each domain has a limited
//! number of places. Some places are reserved for registries that have answered before. A request
//! takes a place of its registry first. While it waits for that place, it holds no place that another
//! registry needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::lru;

/// Largest numbers of concurrent requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// For all registries.
    pub(super) all: usize,
    /// For registries that have never answered.
    unproven: usize,
    /// Per domain. A limit per registry is not enough, because the domain's owner can create any
    /// number of host names.
    pub(super) per_domain: usize,
    pub(super) per_registry: usize,
}

pub(super) const LOOKUPS: Places = Places { all: 64, unproven: 32, per_domain: 8, per_registry: 4 };
/// Four slow registries, also of one host, do not stop a fifth.
const PULLS: Places = Places { all: 16, unproven: 12, per_domain: 12, per_registry: 2 };

/// Largest number of registries, and of domains, whose limits are kept.
const MAX_REMEMBERED: u64 = 1024;
/// A failed request that took this long counts as a timeout, not as a refused connection.
const HANGING: Duration = Duration::from_secs(4);
/// How long the runner sends no request to a registry after a timeout.
const COOLDOWN: Duration = Duration::from_secs(3);

/// Limits requests per registry, per domain, for registries that never answered, and in total.
#[derive(Debug)]
pub struct Limiter {
    places: Places,
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

/// The right to one request.
#[derive(Debug)]
pub struct Permit {
    limit: Arc<RegistryLimit>,
    began: Instant,
    _places: Vec<OwnedSemaphorePermit>,
}

// === impl Limiter ===

impl Limiter {
    /// Limits pulls of images.
    pub fn for_pulls() -> Self {
        Self::new(PULLS)
    }

    pub(super) fn new(places: Places) -> Self {
        Self {
            places,
            registries: lru(MAX_REMEMBERED),
            domains: lru(MAX_REMEMBERED),
            unproven: Arc::new(Semaphore::new(places.unproven)),
            all: Arc::new(Semaphore::new(places.all)),
        }
    }

    /// Waits for a place. Returns `None` if the registry is cooling down after a timeout.
    pub async fn acquire(&self, registry: &str) -> Option<Permit> {
        let new = || RegistryLimit {
            places: Arc::new(Semaphore::new(self.places.per_registry)),
            has_answered: AtomicBool::default(),
            ran_out_of_time: Mutex::default(),
        };
        let limit = self.registries.get_with_by_ref(registry, || Arc::new(new()));
        // `acquire_owned` fails only if its semaphore is closed, and nothing closes these. While
        // the registry is cooling down, no request waits here for long. The one that timed out has
        // freed its place. A waiting request takes this place, returns below, and so frees it
        // for the next one.
        let of_registry = Arc::clone(&limit.places).acquire_owned().await.ok()?;
        if limit.ran_out_of_time.lock().is_some_and(|at| at.elapsed() < COOLDOWN) {
            return None;
        }
        let new = || Arc::new(Semaphore::new(self.places.per_domain));
        let of_domain = self.domains.get_with_by_ref(domain(registry), new);
        let is_proven = limit.has_answered.load(Ordering::Relaxed);
        let unproven = (!is_proven).then(|| Arc::clone(&self.unproven));
        let mut places = vec![of_registry];
        // The places that all registries share are taken last.
        for semaphore in [Some(of_domain), unproven, Some(Arc::clone(&self.all))].into_iter().flatten() {
            places.push(semaphore.acquire_owned().await.ok()?);
        }
        Some(Permit { limit, began: Instant::now(), _places: places })
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

// === impl Permit ===

impl Permit {
    /// Records whether the registry answered (an error is an answer too), and frees the place.
    pub fn finish(self, answered: bool) {
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
