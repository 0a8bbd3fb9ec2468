//! Tokens that are still good, by what they were given for and to whom. Pure.

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

use lru::LruCache;
use tokio::time::Instant;

use crate::auth::{BearerChallenge, Token};
use crate::docker_config::Credential;
use crate::secret::Secret;

/// 50 images with a scope each, and room: a token may have some KiB.
const MAX_TOKENS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Bounded; the least recently used goes first.
#[derive(Debug)]
pub(crate) struct TokenCache {
    tokens: LruCache<TokenKey, (Secret, Instant)>,
}

/// Whose token it is, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TokenKey {
    pub(crate) registry: String,
    pub(crate) challenge: BearerChallenge,
    pub(crate) credential: Option<Credential>,
}

impl TokenCache {
    pub(crate) fn new() -> Self {
        Self { tokens: LruCache::new(MAX_TOKENS) }
    }

    pub(crate) fn get(&mut self, key: &TokenKey, now: Instant) -> Option<Secret> {
        let (secret, until) = self.tokens.get(key)?;
        if now < *until {
            return Some(secret.clone());
        }
        self.tokens.pop(key);
        None
    }

    pub(crate) fn put(&mut self, key: TokenKey, token: &Token, now: Instant) {
        self.tokens.put(key, (token.secret.clone(), now + token.usable_for));
    }

    /// Whatever was given for this registry.
    pub(crate) fn forget(&mut self, registry: &str) {
        let of_it: Vec<_> = self
            .tokens
            .iter()
            .filter(|(key, _)| key.registry == registry)
            .map(|(key, _)| key.clone())
            .collect();
        for key in of_it {
            self.tokens.pop(&key);
        }
    }
}
