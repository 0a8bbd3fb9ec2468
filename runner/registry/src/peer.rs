//! What is known of a registry beyond one lookup: what it wants to see, and how many ask it right now.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::address_class::AddressClass;
use crate::auth::BearerChallenge;

/// Lookups at one registry at once: one that hangs holds no more.
pub(crate) const PER_REGISTRY: usize = 4;

/// What is known of a registry.
#[derive(Debug)]
pub(crate) struct Peer {
    scheme: Mutex<Option<Scheme>>,
    /// While nothing is known one finds out, and the others wait.
    pub(crate) first: tokio::sync::Mutex<()>,
    pub(crate) permits: Arc<Semaphore>,
}

/// What a registry wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scheme {
    Open,
    Basic,
    /// In [`Peer`], without the scope: that is the image's. The class is the registry's.
    Bearer(BearerChallenge, AddressClass),
}

// === impl Peer ===

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            scheme: Mutex::default(),
            first: tokio::sync::Mutex::default(),
            permits: Arc::new(Semaphore::new(PER_REGISTRY)),
        }
    }

    pub(crate) fn scheme(&self) -> Option<Scheme> {
        self.scheme.lock().clone()
    }

    pub(crate) fn learn(&self, scheme: Option<Scheme>) {
        *self.scheme.lock() = scheme.map(|scheme| match scheme {
            Scheme::Bearer(challenge, registry) => {
                Scheme::Bearer(BearerChallenge { scope: None, ..challenge }, registry)
            }
            scheme => scheme,
        });
    }
}
