//! How a registry wants to be shown who asks: its challenges and its tokens, as text. Pure.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Deserialize;

use crate::RegistryError;
use crate::manifest::{json, malformed};
use crate::secret::{Secret, bearer_header};

/// Longest header that is read.
const MAX_CHALLENGE: usize = 8 << 10;
/// What the specification says of a token without `expires_in`.
const DEFAULT_EXPIRY: u64 = 60;
/// Longer than any registry gives, and short enough for arithmetic.
const MAX_EXPIRY: u64 = 24 * 60 * 60;

pub(crate) const TOKEN: &str = "token";

/// What `WWW-Authenticate` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from elsewhere.
    Bearer(BearerChallenge),
}

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BearerChallenge {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: Option<String>,
}

/// The challenge to answer among those of the headers: a token's where there is one, since it works for anonymous
/// requests too.
pub(crate) fn challenge<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Challenge> {
    let mut basic = None;
    for header in headers {
        for (scheme, parameters) in challenges(header) {
            if scheme.eq_ignore_ascii_case("bearer") {
                let get = |name: &str| {
                    let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
                };
                if let Some(realm) = get("realm") {
                    let bearer = BearerChallenge { realm, service: get("service"), scope: get("scope") };
                    return Some(Challenge::Bearer(bearer));
                }
            } else if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
        }
    }
    basic
}

type Parameters = Vec<(String, String)>;

/// `Scheme key=value, key="quoted value", Scheme2 …`; what cannot be read ends the list.
fn challenges(header: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    if header.len() > MAX_CHALLENGE {
        return found;
    }
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let word = token(rest);
        if word.is_empty() {
            return found;
        }
        rest = rest[word.len()..].trim_start_matches([' ', '\t']);
        let value = rest.strip_prefix('=').map(|after| after.trim_start_matches([' ', '\t']));
        // A parameter has a `=`; any other word is a scheme.
        let (Some(value), Some((_, parameters))) = (value, found.last_mut()) else {
            if rest.starts_with('=') {
                return found;
            }
            found.push((word.to_owned(), Vec::new()));
            continue;
        };
        let Some((text, after)) = parameter_value(value) else { return found };
        parameters.push((word.to_owned(), text));
        rest = after;
    }
}

/// The value at the start of the text, and what is behind it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Unquoted URLs are seen, though a token may not have ':' and '/'.
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

fn token(text: &str) -> &str {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    &text[..text.find(|c| !is_token(c)).unwrap_or(text.len())]
}

/// A token that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) secret: Secret,
    /// How long it is used: a tenth less than it is good for.
    pub(crate) usable_for: Duration,
}

#[derive(Deserialize)]
struct Wire {
    token: Option<String>,
    access_token: Option<String>,
    /// Some write it as a string.
    expires_in: Option<serde_json::Value>,
}

/// Reads a token server's answer.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<Token, RegistryError> {
    let wire: Wire = json(bytes, TOKEN)?;
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let secret = some(wire.token)
        .or(some(wire.access_token))
        .ok_or_else(|| malformed(TOKEN, "it has neither token nor access_token"))?;
    let secret = Secret::new(&secret);
    if bearer_header(&secret).is_none() {
        return Err(malformed(TOKEN, "it has characters that no token may have"));
    }
    let expires_in = match wire.expires_in {
        Some(serde_json::Value::Number(number)) => number.as_u64(),
        Some(serde_json::Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    // None or zero is common where the field was forgotten.
    let expires_in = expires_in.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_EXPIRY).min(MAX_EXPIRY);
    Ok(Token { secret, usable_for: Duration::from_secs(expires_in) * 9 / 10 })
}
