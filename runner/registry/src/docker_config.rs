//! Docker's `config.json`: which credentials are for which image. Pure.
//!
//! Many tools write its keys, in many spellings. They are read like the kubelet reads them, since
//! it pulls with the same file. An error quotes nothing of the file but its keys.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use porch_fn_image::Image;
use serde_json::{Map, Value};

use crate::secret::{Secret, bearer_header};

/// A longer key is not quoted.
const MAX_QUOTED: usize = 256;

const DOCKER_HUB: &str = "docker.io";

/// What to show to a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// User and password.
    Basic { user: String, password: Secret },
    /// `identitytoken`: a refresh token of OAuth 2.
    Identity { token: Secret },
    /// `registrytoken`: to be sent as it is.
    Bearer { token: Secret },
}

/// A file that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DockerConfig {
    /// The first that matches is the right one: a longer path comes first, then a host before a
    /// pattern of hosts.
    entries: Vec<Entry>,
    /// The key that leaves credentials to a program, if there is one.
    pub(crate) helper: Option<&'static str>,
    /// Whether it has `auths` at all.
    pub(crate) has_auths: bool,
}

/// The credential for a registry, or for a part of its repositories.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    host: String,
    /// Without slashes at its ends; empty for all repositories.
    path: String,
    credential: Credential,
}

// === impl DockerConfig ===

impl DockerConfig {
    /// # Errors
    /// What is wrong with the file, as text: nobody tells the causes apart.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        // serde's own words quote the file, and so a secret in a wrong place.
        let file: Value = serde_json::from_slice(bytes).map_err(|error| {
            let problem = if error.is_eof() { "the JSON ends too early" } else { "this is not JSON" };
            format!("line {}, column {}: {problem}", error.line(), error.column())
        })?;
        let Value::Object(file) = file else { return Err("it is not a JSON object".to_owned()) };
        let auths = map(&file, "auths")?;
        let has_helpers = map(&file, "credHelpers")?.is_some_and(|helpers| !helpers.is_empty());
        let has_store = text(&file, "credsStore").map_err(|problem| format!("its {problem}"))?.is_some();
        let helper = has_store.then_some("credsStore").or(has_helpers.then_some("credHelpers"));

        let mut entries = Vec::new();
        for (number, (key, entry)) in auths.into_iter().flatten().enumerate() {
            let wrong = |problem| format!("auths, {}: {problem}", entry_name(key, number + 1));
            let (host, path) = parse_key(key).map_err(wrong)?;
            if let Some(credential) = credential(entry).map_err(wrong)? {
                entries.push(Entry { host, path, credential });
            }
        }
        // Stable: of two spellings of one place the first counts.
        entries.sort_by_cached_key(|entry| {
            (Reverse(entry.path.len()), entry.host.contains('*'), entry.host.clone())
        });
        Ok(Self { entries, helper, has_auths: auths.is_some() })
    }

    /// The credentials for the image: those of the longest path that holds its repository, else its
    /// registry's.
    pub(crate) fn lookup(&self, image: &Image) -> Option<&Credential> {
        let host = canonical_host(image.registry());
        let holds =
            |entry: &&Entry| path_holds(&entry.path, path_of(image)) && host_matches(&entry.host, &host);
        self.entries.iter().find(holds).map(|entry| &entry.credential)
    }
}

/// The image's repository without its registry.
pub(crate) fn path_of(image: &Image) -> &str {
    &image.repository()[image.registry().len() + 1..]
}

fn map<'a>(file: &'a Map<String, Value>, key: &str) -> Result<Option<&'a Map<String, Value>>, String> {
    match file.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(format!("its {key} is not a JSON object")),
    }
}

/// The text of a field; `None` if it is empty.
fn text<'a>(map: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("{key} is not a string")),
    }
}

/// `None` for an entry without credentials: credential helpers leave such entries behind.
fn credential(entry: &Value) -> Result<Option<Credential>, String> {
    let Value::Object(entry) = entry else { return Err("it is not a JSON object".to_owned()) };
    let auth = text(entry, "auth")?.map(decode_auth).transpose()?;
    let (username, password) = (text(entry, "username")?, text(entry, "password")?);
    let (identity, token) = (text(entry, "identitytoken")?, text(entry, "registrytoken")?.map(Secret::new));
    if let Some(token) = identity {
        return Ok(Some(Credential::Identity { token: Secret::new(token) }));
    }
    if let Some(token) = token {
        if bearer_header(&token).is_none() {
            return Err("registrytoken has characters that no token may have".to_owned());
        }
        return Ok(Some(Credential::Bearer { token }));
    }
    let problem = match (auth, username, password) {
        (Some((user, password)), _, _) => return Ok(Some(Credential::Basic { user, password })),
        (None, None, None) => return Ok(None),
        (None, Some(user), Some(password)) if !user.contains(':') => {
            return Ok(Some(Credential::Basic { user: user.to_owned(), password: Secret::new(password) }));
        }
        (None, Some(_), Some(_)) => "username has a colon, which no user name may have",
        (None, Some(_), None) => "it has a username without a password",
        (None, None, Some(_)) => "it has a password without a username",
    };
    Err(problem.to_owned())
}

fn decode_auth(auth: &str) -> Result<(String, Secret), &'static str> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let decoded = LENIENT.decode(auth.trim()).map_err(|_| "auth is not base64")?;
    let decoded = String::from_utf8(decoded).map_err(|_| "auth is not UTF-8 in base64")?;
    let (user, password) = decoded.split_once(':').ok_or("auth is not user:password in base64")?;
    // Docker once padded the text with NULs.
    Ok((user.to_owned(), Secret::new(password.trim_end_matches('\0'))))
}

/// Reads `https://index.docker.io/v1/`, `http://host/`, `host`, `host:port`, `host/path`: a host
/// and a path.
fn parse_key(key: &str) -> Result<(String, String), String> {
    let (scheme, rest) = match key.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, key),
    };
    if !matches!(scheme.as_deref(), None | Some("http" | "https")) {
        return Err("its key is neither a registry nor an http or https URL".to_owned());
    }
    if rest.contains(['@', '?', '#']) {
        return Err("its key may not have a user, a query or a fragment".to_owned());
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let default_port = if scheme.as_deref() == Some("http") { ":80" } else { ":443" };
    let host = host.strip_suffix(default_port).unwrap_or(host);
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("its key has no registry".to_owned());
    }
    // The API's version is not a path of repositories. Without a scheme only the last slash tells.
    let is_url = scheme.is_some() || path.ends_with('/');
    let path = path.trim_matches('/');
    let path = match path.rsplit('/').next() {
        Some("v1" | "v2") if is_url => path[..path.len() - 2].trim_end_matches('/'),
        _ => path,
    };
    Ok((canonical_host(host), path.to_owned()))
}

/// One spelling of each registry: lower case, no default port, one name for Docker Hub.
fn canonical_host(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match host.strip_suffix(":443").unwrap_or(&host) {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        host => host.to_owned(),
    }
}

/// Whether the repository is the path or below it.
fn path_holds(path: &str, repository: &str) -> bool {
    match repository.strip_prefix(path) {
        Some(rest) => path.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Matches like the kubelet: a `*` stands for any part of one label, and never for a dot or a port.
fn host_matches(pattern: &str, host: &str) -> bool {
    if !pattern.contains('*') {
        return pattern == host;
    }
    let split = |text| -> (&str, Option<&str>) {
        str::rsplit_once(text, ':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    let ((pattern, pattern_port), (host, port)) = (split(pattern), split(host));
    pattern_port == port
        && pattern.split('.').count() == host.split('.').count()
        && pattern.split('.').zip(host.split('.')).all(|(pattern, label)| label_matches(pattern, label))
}

fn label_matches(pattern: &str, label: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == label };
    let Some(mut label) = label.strip_prefix(first) else { return false };
    let Some((middle, last)) = rest.rsplit_once('*') else { return label.ends_with(rest) };
    // Each part at its first place, so that the most is left for the parts after it.
    for part in middle.split('*') {
        let Some(at) = label.find(part) else { return false };
        label = &label[at + part.len()..];
    }
    label.ends_with(last)
}

/// An entry by its key, or by its number if the key may hold a secret, like `user:password@host`.
fn entry_name(key: &str, number: usize) -> String {
    if key.len() > MAX_QUOTED || key.contains('@') || key.chars().any(char::is_control) {
        format!("entry number {number}")
    } else {
        format!("entry {key:?}")
    }
}
