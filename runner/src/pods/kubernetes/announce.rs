//! The tokens with which starting pods announce that they serve (`--pod-announce`).
//!
//! The API server reports the address of a new pod about 0.2 s after its wrapper-server listens. The
//! wrapper-server knows its address at once, and reports it to the runner that created the pod. Its
//! environment has a random token that is valid for this pod, and for one use. A token proves only
//! which pod reports an address: the runner still probes the address before it sends calls there.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_pool::Uid;
use ring::rand::{SecureRandom, SystemRandom};

/// Maximum number of pods that start. The oldest token is dropped; its pod then starts without an
/// announcement.
const MAX_TOKENS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The tokens of pods that start.
#[derive(Debug)]
pub(crate) struct Announcements {
    /// The runner's own address, `host:port`.
    pub(crate) address: String,
    tokens: Mutex<LruCache<String, Uid>>,
}

impl Announcements {
    pub(crate) fn new(address: String) -> Self {
        Self { address, tokens: Mutex::new(LruCache::new(MAX_TOKENS)) }
    }

    /// Makes a token for a new pod. `None` if the system has no random numbers.
    pub(super) fn token() -> Option<String> {
        let mut bytes = [0; size_of::<u128>()];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(format!("{:032x}", u128::from_be_bytes(bytes)))
    }

    /// Accepts the token once, for this pod.
    pub(super) fn expect(&self, token: String, pod: Uid) {
        self.tokens.lock().put(token, pod);
    }

    /// The pod of a token. The token is then no longer valid.
    pub(super) fn redeem(&self, token: &str) -> Option<Uid> {
        self.tokens.lock().pop(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_once_and_for_one_pod() {
        let announcements = Announcements::new("10.0.0.1:9445".to_owned());
        let [first, second] = [(); 2].map(|()| Announcements::token().unwrap());
        assert!(first.len() == 32 && first != second, "{first} {second}");
        announcements.expect(first.clone(), "one".into());
        announcements.expect(second.clone(), "two".into());
        assert_eq!(announcements.redeem(&second), Some("two".into()));
        assert_eq!(announcements.redeem(&second), None);
        assert_eq!(announcements.redeem(&first[..31]), None);
        assert_eq!(announcements.redeem(&first), Some("one".into()));
    }
}
