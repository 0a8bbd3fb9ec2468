//! How long tokens are used, and for whom; time is paused.

use std::time::Duration;

use tokio::time::Instant;

use super::{TokenCache, TokenKey};
use crate::auth::{BearerChallenge, Token};
use crate::docker_config::Credential;
use crate::secret::Secret;

fn key(registry: &str, scope: &str, password: &str) -> TokenKey {
    TokenKey {
        registry: registry.to_owned(),
        challenge: BearerChallenge { realm: "https://a".into(), service: None, scope: Some(scope.into()) },
        credential: Some(Credential::Basic { user: "me".into(), password: Secret::new(password) }),
    }
}

fn token(text: &str) -> Token {
    Token { secret: Secret::new(text), usable_for: Duration::from_secs(54) }
}

#[tokio::test]
async fn a_token_is_used_until_its_time_and_for_its_own_key() {
    let now = Instant::now();
    let mut cache = TokenCache::new();
    cache.put(key("r", "s", "p"), &token("t"), now);
    assert_eq!(cache.get(&key("r", "s", "p"), now + Duration::from_secs(53)), Some(Secret::new("t")));
    assert_eq!(cache.get(&key("other", "s", "p"), now), None);
    assert_eq!(cache.get(&key("r", "other", "p"), now), None);
    assert_eq!(cache.get(&key("r", "s", "other"), now), None);
    assert_eq!(cache.get(&key("r", "s", "p"), now + Duration::from_secs(54)), None);
    // An old one is gone, even for a clock that stands still.
    assert_eq!(cache.get(&key("r", "s", "p"), now), None);
}

#[tokio::test]
async fn what_a_registry_gave_is_forgotten_and_all_is_bounded() {
    let now = Instant::now();
    let mut cache = TokenCache::new();
    cache.put(key("r", "s", "p"), &token("t"), now);
    cache.put(key("r", "s2", "q"), &token("t"), now);
    cache.put(key("q", "s", "p"), &token("t"), now);
    cache.forget("r");
    assert_eq!(cache.get(&key("r", "s", "p"), now), None);
    assert_eq!(cache.get(&key("r", "s2", "q"), now), None);
    assert!(cache.get(&key("q", "s", "p"), now).is_some());
    for number in 0..1024 {
        cache.put(key("r", &number.to_string(), "p"), &token("t"), now);
    }
    assert_eq!(cache.get(&key("q", "s", "p"), now), None);
    assert!(cache.get(&key("r", "0", "p"), now).is_some());
}
