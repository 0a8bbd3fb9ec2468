//! The seam between discovery and DNS: one lookup, as narrow as [`watch`](super::watch) needs it.

use std::{fmt::Display, future::Future, net::IpAddr, time::Duration};

/// An answer is not asked for again before this, whatever its TTL: a TTL of 0 must not become a flood.
pub const MIN_VALID_FOR: Duration = Duration::from_secs(1);

/// An answer is asked for again after this at the latest. Cluster DNS hands out 30 s, and a runner that was
/// scaled out should not wait that long for its share; a query each 10 s costs a DNS server nothing.
pub const MAX_VALID_FOR: Duration = Duration::from_secs(10);

/// Looks up the addresses of a name.
pub trait Resolver: Send + Sync {
    /// All IPv4 and IPv6 addresses of `host`.
    ///
    /// # Errors
    /// [`LookupError`] when it is not known which addresses there are. That a name has none, or does not
    /// exist, is a [`Lookup`].
    fn lookup(&self, host: &str) -> impl Future<Output = Result<Lookup, LookupError>> + Send;
}

/// The answer to a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// In any order, possibly repeated.
    pub addresses: Vec<IpAddr>,
    /// The TTL of the answer. The caller applies [`MIN_VALID_FOR`] and [`MAX_VALID_FOR`].
    pub valid_for: Duration,
    /// `false` if the answer was "no such name". Then there are no addresses either.
    pub name_exists: bool,
    /// The family whose lookup failed while the other's gave `addresses`.
    pub unanswered: Option<Family>,
}

/// The two kinds of addresses, which DNS looks up separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A records.
    V4,
    /// AAAA records.
    V6,
}

/// A lookup that gave no answer: why, and what to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

// === impl LookupError ===

impl LookupError {
    /// No DNS server answered in time.
    pub fn timeout(host: &str) -> Self {
        Self(format!(
            "no DNS server answered for {host:?}; check the servers in /etc/resolv.conf and the network to them"
        ))
    }

    /// A DNS server could not be reached, or answered with an error.
    pub fn failed(host: &str, reason: impl Display) -> Self {
        Self(format!("the lookup of {host:?} failed ({reason}); check the DNS server's own log"))
    }
}

// === impl Lookup ===

impl Lookup {
    /// A complete answer with these addresses.
    pub fn new(addresses: Vec<IpAddr>, valid_for: Duration) -> Self {
        Self { addresses, valid_for, name_exists: true, unanswered: None }
    }
}

// === impl Family ===

impl Family {
    /// The family of `address`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}
