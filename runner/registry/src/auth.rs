//! Challenges of registries, and the tokens of their token servers, as text. Pure.

#[cfg(test)]
mod tests;

use std::time::Duration;

use http_auth::parse_challenges;
use serde::Deserialize;
use serde_json::Value;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::error::json;
use crate::secret::Secret;

/// The lifetime of a token without `expires_in`, in seconds, by the specification.
const DEFAULT_EXPIRY: u64 = 60;
/// The longest lifetime that is used, in seconds. Registries give less.
const MAX_EXPIRY: u64 = 24 * 60 * 60;

pub(crate) const TOKEN: &str = "token";

/// What a registry wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Nothing: its `/v2/` has no challenge.
    Open,
    /// User and password with each request.
    Basic,
    /// A token from elsewhere.
    Bearer(BearerChallenge),
}

/// Where tokens come from. The scope is not read: like docker, we ask for the image's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BearerChallenge {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    /// The class of the registry, which limits the realm's.
    pub(crate) registry: AddressClass,
}

/// The challenge to answer among those of the headers of `registry`. A token comes first, since it
/// serves anonymous requests too.
pub(crate) fn challenge<'a>(
    headers: impl IntoIterator<Item = &'a str>,
    registry: AddressClass,
) -> Option<Challenge> {
    let mut basic = None;
    for challenge in headers.into_iter().filter_map(|header| parse_challenges(header).ok()).flatten() {
        let get = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped()).filter(|value| !value.is_empty())
        };
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        } else if challenge.scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = get("realm")
        {
            return Some(Challenge::Bearer(BearerChallenge { realm, service: get("service"), registry }));
        }
    }
    basic
}

#[derive(Deserialize)]
struct WireToken {
    token: Option<String>,
    access_token: Option<String>,
    /// A number, or a string with some token servers.
    expires_in: Option<Value>,
}

/// Reads the response of a token server: the token, and how long it is used, which is a tenth less
/// than its lifetime.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<(Secret, Duration), RegistryError> {
    let malformed = |reason| RegistryError::malformed(TOKEN, reason);
    let wire: WireToken = json(bytes, TOKEN)?;
    let token = [wire.token, wire.access_token].into_iter().flatten().find(|text| !text.is_empty());
    let token = token.ok_or_else(|| malformed("it has neither token nor access_token".to_owned()))?;
    let token = Secret::token(&token).map_err(|problem| malformed(format!("it has {problem}")))?;
    let expires_in = match wire.expires_in {
        Some(Value::Number(number)) => number.as_u64(),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    // Zero stands for a forgotten field, like none.
    let expires_in = expires_in.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_EXPIRY).min(MAX_EXPIRY);
    Ok((token, Duration::from_secs(expires_in) * 9 / 10))
}
