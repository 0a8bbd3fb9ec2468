//! Challenges of registries, and the tokens of their token servers, as text. Pure.

#[cfg(test)]
mod tests;

use http_auth::parse_challenges;
use serde::Deserialize;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::error::json;
use crate::secret::Secret;

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
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

/// Reads the response of a token server.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<Secret, RegistryError> {
    let malformed = |reason| RegistryError::malformed(TOKEN, reason);
    let wire: WireToken = json(bytes, TOKEN)?;
    let token = [wire.token, wire.access_token].into_iter().flatten().find(|text| !text.is_empty());
    let token = token.ok_or_else(|| malformed("it has neither token nor access_token".to_owned()))?;
    Secret::token(&token).map_err(|problem| malformed(format!("it has {problem}")))
}
