//! Tokens that were given out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What every token begins with, so that it can be searched for.
const MARK: &str = "planted-token";

#[derive(Debug, Default)]
pub(super) struct Tokens {
    issued: Vec<Issued>,
}

#[derive(Debug)]
struct Issued {
    token: String,
    repository: String,
    until: Instant,
}

// === impl Tokens ===

impl Tokens {
    pub(super) fn issue(&mut self, repository: &str, lifetime: Duration) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let token = format!("{MARK}-{}-{number}", std::process::id());
        let repository = repository.to_owned();
        self.issued.push(Issued { token: token.clone(), repository, until: Instant::now() + lifetime });
        token
    }

    /// What is wrong with a token, as a challenge says it, or nothing.
    pub(super) fn flaw(&self, token: &str, repository: &str) -> Option<&'static str> {
        match self.issued.iter().find(|issued| issued.token == token) {
            Some(issued) if Instant::now() >= issued.until => Some(",error=\"invalid_token\""),
            None => Some(",error=\"invalid_token\""),
            Some(issued) if !repository.is_empty() && issued.repository != repository => {
                Some(",error=\"insufficient_scope\"")
            }
            Some(_) => None,
        }
    }

    pub(super) fn revoke(&mut self) {
        let now = Instant::now();
        self.issued.iter_mut().for_each(|issued| issued.until = now);
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.issued.iter().map(|issued| issued.token.clone()).collect()
    }
}
