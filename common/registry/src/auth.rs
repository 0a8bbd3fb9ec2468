//! Parses challenges of registries and responses of token servers. No I/O.

#[cfg(test)]
mod tests;

use http::HeaderValue;
use http_auth::parse_challenges;
use serde::Deserialize;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::error::json;

pub(crate) const TOKEN: &str = "token";

/// The authentication that a registry demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// None: the response of `/v2/` has no challenge.
    Open,
    /// User and password with each request.
    Basic,
    /// A token from a token server.
    Bearer(BearerChallenge),
}

/// The token server to use. The challenge's scope is ignored: like docker, the client requests the
/// scope of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BearerChallenge {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    /// The class of the registry's address, which limits the addresses of the realm.
    pub(crate) registry: AddressClass,
    /// The registry sent the challenge by plain HTTP, so the realm may speak it, too.
    pub(crate) is_plain: bool,
}

/// Chooses a challenge from the headers of `registry`. Prefers Bearer, because it works for
/// anonymous requests too.
pub(crate) fn challenge<'a>(
    headers: impl IntoIterator<Item = &'a str>,
    registry: AddressClass,
    is_plain: bool,
) -> Option<Challenge> {
    let mut basic = None;
    let headers: Vec<_> = headers.into_iter().map(single_spaced).collect();
    for challenge in headers.iter().filter_map(|header| parse_challenges(header).ok()).flatten() {
        let get = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped()).filter(|value| !value.is_empty())
        };
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        } else if challenge.scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = get("realm")
        {
            let service = get("service");
            return Some(Challenge::Bearer(BearerChallenge { realm, service, registry, is_plain }));
        }
    }
    basic
}

/// RFC 9110 allows several spaces after a scheme, and http-auth one.
fn single_spaced(header: &str) -> String {
    let (mut last, mut is_quoted) = (' ', false);
    let keep = |letter: &char| {
        let before = std::mem::replace(&mut last, *letter);
        is_quoted ^= *letter == '"' && before != '\\';
        is_quoted || *letter != ' ' || before != ' '
    };
    header.chars().filter(keep).collect()
}

#[derive(Deserialize)]
struct WireToken {
    token: Option<String>,
    access_token: Option<String>,
}

/// Reads the response of a token server.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<String, RegistryError> {
    let wire: WireToken = json(bytes, TOKEN)?;
    let token = [wire.token, wire.access_token].into_iter().flatten().find(|text| !text.is_empty());
    let reason = match token {
        Some(token) if HeaderValue::from_str(&token).is_ok() => return Ok(token),
        Some(_) => "it has characters that no token may have",
        None => "it has neither token nor access_token",
    };
    Err(RegistryError::malformed(TOKEN, reason))
}
