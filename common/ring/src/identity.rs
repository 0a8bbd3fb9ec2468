//! The name a runner has on the ring.
//!
//! A separate type, so that stable names can replace addresses without a change elsewhere.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A runner's identity: today its address as discovery gives it, `host:port`, IPv6 in brackets.
///
/// Compared and hashed by its bytes: two spellings of one address are two runners. Build it from a
/// [`SocketAddr`] if there is one, because that has one spelling only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// The identity's text, which the ring hashes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Identity {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for Identity {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl From<SocketAddr> for Identity {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string().into())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_have_one_spelling() {
        let v4: SocketAddr = "10.0.0.1:9445".parse().unwrap();
        let v6: SocketAddr = "[2001:DB8:0:0:0:0:0:1]:9445".parse().unwrap();
        assert_eq!(Identity::from(v4).to_string(), "10.0.0.1:9445");
        assert_eq!(Identity::from(v6), Identity::from("[2001:db8::1]:9445"));
    }
}
