//! Docker's `config.json`: finds the credentials for an image. No I/O.
//!
//! Many tools write this file, and they spell its keys in many ways. The keys are parsed like in
//! the kubelet, which pulls images with the same file. An error quotes only keys of the file, never
//! values.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use porch_fn_image::{Image, glob_matches};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::json_problem;

/// A longer key is not quoted.
const MAX_QUOTED: usize = 256;

pub(crate) const DOCKER_HUB: &str = "docker.io";

/// A credential for a registry. Its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// User and password.
    Basic { user: String, password: String },
    /// `identitytoken`: a refresh token of OAuth 2.
    Identity { token: String },
}

/// A parsed file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DockerConfig {
    /// The first match wins. Longer paths come first; among paths of the same length, hosts come
    /// before host patterns.
    entries: Vec<Entry>,
    /// `credHelpers`: the helper of each registry.
    helpers: Map<String, Value>,
    /// `credsStore`: the helper of the registries without an entry. Not empty.
    store: Option<String>,
    /// Whether the file has the key `auths`.
    pub(crate) has_auths: bool,
}

/// The credential for a registry, or for a part of its repositories.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    host: String,
    /// Without leading and trailing slashes; empty for all repositories.
    path: String,
    credential: Credential,
}

/// The JSON of the file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireFile {
    auths: Option<Map<String, Value>>,
    cred_helpers: Option<Map<String, Value>>,
    creds_store: Option<String>,
}

/// The JSON of an entry. An empty string means not set.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

// === impl DockerConfig ===

impl DockerConfig {
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: WireFile = serde_json::from_slice(bytes).map_err(|error| json_problem(&error))?;
        let has_auths = file.auths.is_some();
        let mut entries = Vec::new();
        for (number, (key, entry)) in file.auths.into_iter().flatten().enumerate() {
            let wrong = |problem| format!("auths, {}: {problem}", entry_name(&key, number + 1));
            let (host, path) = parse_key(&key).map_err(wrong)?;
            if let Some(credential) = credential(entry).map_err(wrong)? {
                entries.push(Entry { host, path, credential });
            }
        }
        // The sort is stable: between two spellings of the same registry, the first wins.
        entries.sort_by_cached_key(|entry| {
            (Reverse(entry.path.len()), entry.host.contains('*'), entry.host.clone())
        });
        let store = file.creds_store.filter(|store| !store.is_empty());
        Ok(Self { entries, helpers: file.cred_helpers.unwrap_or_default(), store, has_auths })
    }

    /// The key that configures a credential helper, if there is one.
    pub(crate) fn helper_key(&self) -> Option<&'static str> {
        let has_helpers = !self.helpers.is_empty();
        self.store.as_ref().map(|_| "credsStore").or(has_helpers.then_some("credHelpers"))
    }

    /// Returns the helper to ask for the image's credential, by the order of Docker: its registry's,
    /// or that of all registries if the file has no entry for the image.
    pub(crate) fn helper(&self, image: &Image) -> Option<&str> {
        let host = canonical_host(image.registry());
        let is_own = |(key, _): &(&String, &Value)| parse_key(key).is_ok_and(|(key, _)| key == host);
        let own = self.helpers.iter().find(is_own).and_then(|(_, helper)| helper.as_str());
        own.or_else(|| self.store.as_deref().filter(|_| self.lookup(image).is_none()))
    }

    /// Returns the credential of the first entry that matches the image's registry and path.
    pub(crate) fn lookup(&self, image: &Image) -> Option<&Credential> {
        let host = canonical_host(image.registry());
        let path = Path::new(path_of(image));
        let holds = |entry: &&Entry| path.starts_with(&entry.path) && host_matches(&entry.host, &host);
        self.entries.iter().find(holds).map(|entry| &entry.credential)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// The image's repository without its registry.
pub(crate) fn path_of(image: &Image) -> &str {
    &image.repository()[image.registry().len() + 1..]
}

/// Returns `None` for an entry without credentials; credential helpers write such entries.
fn credential(entry: Value) -> Result<Option<Credential>, &'static str> {
    let wire = WireEntry::deserialize(entry);
    let wire = wire.map_err(|_| "it is not a JSON object, or a field of it is not a string")?;
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(token) = set(wire.identitytoken) {
        return Ok(Some(Credential::Identity { token }));
    }
    let (user, password) = match (set(wire.auth), set(wire.username), set(wire.password)) {
        (Some(auth), _, _) => decode_auth(&auth)?,
        (None, None, None) => return Ok(None),
        (None, Some(user), _) if user.contains(':') => {
            return Err("username has a colon, which no user name may have");
        }
        (None, Some(user), Some(password)) => (user, password),
        (None, Some(_), None) => return Err("it has a username without a password"),
        (None, None, Some(_)) => return Err("it has a password without a username"),
    };
    Ok(Some(Credential::Basic { user, password }))
}

fn decode_auth(auth: &str) -> Result<(String, String), &'static str> {
    // Some tools write no padding.
    let auth = auth.trim().trim_end_matches('=');
    let decoded = BASE64_STANDARD_NO_PAD.decode(auth).map_err(|_| "auth is not base64")?;
    let decoded = String::from_utf8(decoded).map_err(|_| "auth is not UTF-8 in base64")?;
    let (user, password) = decoded.split_once(':').ok_or("auth is not user:password in base64")?;
    // Old versions of Docker padded the text with NULs.
    Ok((user.to_owned(), password.trim_end_matches('\0').to_owned()))
}

/// Reads `https://index.docker.io/v1/`, `http://host/`, `host`, `host:port`, `host/path`: a host
/// and a path.
fn parse_key(key: &str) -> Result<(String, String), &'static str> {
    let is_url = key.contains("://");
    let url = if is_url { Url::parse(key) } else { Url::parse(&format!("https://{key}")) };
    let url = url.ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or("its key is neither a registry nor an http or https URL")?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    if has_user || url.query().is_some() || url.fragment().is_some() {
        return Err("its key may not have a user, a query or a fragment");
    }
    let host = url.host_str().unwrap_or_default();
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    // The API version (`v1`, `v2`) is not part of a repository's path. Without a scheme, only a
    // trailing slash shows that it is a version.
    let is_url = is_url || url.path().ends_with('/');
    let path = url.path().trim_matches('/');
    let path = match path.rsplit('/').next() {
        Some("v1" | "v2") if is_url => path[..path.len() - 2].trim_end_matches('/'),
        _ => path,
    };
    Ok((canonical_host(&host), path.to_owned()))
}

/// Normalizes a host: lower case, no default port, one name for Docker Hub.
fn canonical_host(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match host.strip_suffix(":443").unwrap_or(&host) {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        host => host.to_owned(),
    }
}

/// Matches like the kubelet: a `*` stands for any part of one label, and never for a dot or a port.
fn host_matches(pattern: &str, host: &str) -> bool {
    let patterns: Vec<_> = pattern.split(['.', ':']).collect();
    let labels: Vec<_> = host.split(['.', ':']).collect();
    patterns.len() == labels.len()
        && patterns.iter().zip(labels).all(|(pattern, label)| glob_matches(pattern, label))
}

/// Names an entry by its key, or by its number if the key may contain a secret
/// (`user:password@host`).
fn entry_name(key: &str, number: usize) -> String {
    if key.len() > MAX_QUOTED || key.contains('@') || key.chars().any(char::is_control) {
        format!("entry number {number}")
    } else {
        format!("entry {key:?}")
    }
}
