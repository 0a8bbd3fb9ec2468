//! Docker's `config.json`: which credentials are for which image. Pure.
//!
//! Its keys were written by many tools in many spellings. They are read as the kubelet reads them, since it pulls with
//! the same file. What is wrong is told without a word of what is in the file but its keys.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use porch_fn_image::Image;
use serde_json::{Map, Value};

use crate::secret::{Secret, bearer_header};

/// The most that is read of a file.
pub(crate) const MAX_FILE: usize = 1 << 20;
/// A Kubernetes Secret holds no more than 1 MiB; no entry is shorter than 20 bytes. Bounds each look-up.
const MAX_ENTRIES: usize = 10_000;
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
    /// By host, then the longer path first: the first that matches is the right one.
    entries: Vec<Entry>,
    /// The key that leaves credentials to a program, if there is one.
    pub(crate) helper: Option<&'static str>,
    /// Whether it has `auths` at all.
    pub(crate) has_auths: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    place: Place,
    credential: Credential,
}

/// What a key says: a registry and a part of its repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    host: String,
    /// Without slashes at its ends; empty for all.
    path: String,
}

/// Why a file is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DockerConfigError {
    #[error("line {line}, column {column}: {problem}")]
    Json { line: usize, column: usize, problem: &'static str },
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("its {0} is not a JSON object")]
    NotAMap(&'static str),
    #[error("its credsStore is not a string")]
    NotAString,
    #[error("auths has more than {MAX_ENTRIES} entries")]
    TooMany,
    #[error("auths, {entry}: {problem}")]
    Entry { entry: EntryName, problem: &'static str },
}

/// An entry by its key, or by its number where the key may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryName {
    Key(String),
    Number(usize),
}

// === impl DockerConfig ===

impl DockerConfig {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DockerConfigError> {
        // serde's own words quote the file, and so a secret that stands in a wrong place.
        let file: Value = serde_json::from_slice(bytes).map_err(|error| DockerConfigError::Json {
            line: error.line(),
            column: error.column(),
            problem: if error.is_eof() { "the JSON ends too early" } else { "this is not JSON" },
        })?;
        let Value::Object(file) = file else { return Err(DockerConfigError::NotAnObject) };
        let auths = map(&file, "auths")?;
        let cred_helpers = map(&file, "credHelpers")?;
        let creds_store = match file.get("credsStore") {
            None | Some(Value::Null) => "",
            Some(Value::String(store)) => store,
            Some(_) => return Err(DockerConfigError::NotAString),
        };
        let helper = if creds_store.is_empty() {
            cred_helpers.is_some_and(|helpers| !helpers.is_empty()).then_some("credHelpers")
        } else {
            Some("credsStore")
        };

        if auths.is_some_and(|auths| auths.len() > MAX_ENTRIES) {
            return Err(DockerConfigError::TooMany);
        }
        // Two spellings of one place: the first counts.
        let mut found = BTreeMap::new();
        for (number, (key, entry)) in auths.into_iter().flatten().enumerate() {
            let wrong =
                |problem| DockerConfigError::Entry { entry: EntryName::new(key, number + 1), problem };
            let place = Place::parse(key).map_err(wrong)?;
            if let Some(credential) = credential(entry).map_err(wrong)? {
                found.entry((place.host, place.path)).or_insert(credential);
            }
        }
        let mut entries: Vec<_> = found
            .into_iter()
            .map(|((host, path), credential)| Entry { place: Place { host, path }, credential })
            .collect();
        // The longest path first, and a host before a pattern of hosts.
        entries
            .sort_by_key(|entry| (std::cmp::Reverse(entry.place.path.len()), entry.place.host.contains('*')));
        Ok(Self { entries, helper, has_auths: auths.is_some() })
    }

    /// The credentials for the image: those of the longest path that holds its repository, else its registry's.
    pub(crate) fn lookup(&self, image: &Image) -> Option<&Credential> {
        let host = canonical_host(image.registry());
        let path = &image.repository()[image.registry().len() + 1..];
        self.entries
            .iter()
            .find(|entry| path_holds(&entry.place.path, path) && host_matches(&entry.place.host, &host))
            .map(|entry| &entry.credential)
    }
}

fn map<'a>(
    file: &'a Map<String, Value>,
    key: &'static str,
) -> Result<Option<&'a Map<String, Value>>, DockerConfigError> {
    match file.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(DockerConfigError::NotAMap(key)),
    }
}

/// `None` for an entry that holds no credentials, as a credential helper leaves them behind.
fn credential(entry: &Value) -> Result<Option<Credential>, &'static str> {
    let Value::Object(entry) = entry else { return Err("it is not a JSON object") };
    let text = |key, problem| match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(problem),
    };
    let auth = text("auth", "auth is not a string")?.map(decode_auth).transpose()?;
    let username = text("username", "username is not a string")?;
    let password = text("password", "password is not a string")?;
    let identity = text("identitytoken", "identitytoken is not a string")?;
    let registry_token = text("registrytoken", "registrytoken is not a string")?;

    if let Some(token) = identity {
        return Ok(Some(Credential::Identity { token: Secret::new(token) }));
    }
    if let Some(token) = registry_token {
        let token = Secret::new(token);
        if bearer_header(&token).is_none() {
            return Err("registrytoken has characters that no token may have");
        }
        return Ok(Some(Credential::Bearer { token }));
    }
    match (auth, username, password) {
        (Some((user, password)), _, _) => Ok(Some(Credential::Basic { user, password })),
        (None, Some(user), Some(password)) if !user.contains(':') => {
            Ok(Some(Credential::Basic { user: user.to_owned(), password: Secret::new(password) }))
        }
        (None, Some(_), Some(_)) => Err("username has a colon, which no user name may have"),
        (None, Some(_), None) => Err("it has a username without a password"),
        (None, None, Some(_)) => Err("it has a password without a username"),
        (None, None, None) => Ok(None),
    }
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

// === impl Place ===

impl Place {
    /// Reads `https://index.docker.io/v1/`, `http://host/`, `host`, `host:port`, `host/path`.
    fn parse(key: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = match key.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, key),
        };
        if !matches!(scheme.as_deref(), None | Some("http" | "https")) {
            return Err("its key is neither a registry nor an http or https URL");
        }
        if rest.contains(['@', '?', '#']) {
            return Err("its key may not have a user, a query or a fragment");
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host =
            if scheme.as_deref() == Some("http") { host.strip_suffix(":80").unwrap_or(host) } else { host };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("its key has no registry");
        }
        // The API's version is not a path of repositories; without a scheme only the last slash tells.
        let is_url = scheme.is_some() || path.ends_with('/');
        let path = path.trim_matches('/');
        let path = match path.rsplit('/').next() {
            Some("v1" | "v2") if is_url => path[..path.len() - 2].trim_end_matches('/'),
            _ => path,
        };
        Ok(Self { host: canonical_host(host), path: path.to_owned() })
    }
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

/// As the kubelet matches: a `*` stands for any part of one label, and never for a dot or a port.
fn host_matches(pattern: &str, host: &str) -> bool {
    if !pattern.contains('*') {
        return pattern == host;
    }
    let split = |text: &'_ str| -> (String, Option<String>) {
        match text.rsplit_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port.to_owned())),
            None => (text.to_owned(), None),
        }
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
    // Each part at its first place: what is left for the ones after it is the most there can be.
    for part in middle.split('*') {
        let Some(at) = label.find(part) else { return false };
        label = &label[at + part.len()..];
    }
    label.ends_with(last)
}

// === impl EntryName ===

impl EntryName {
    fn new(key: &str, number: usize) -> Self {
        // Somebody may have written user:password@host.
        if key.len() > MAX_QUOTED || key.contains('@') || key.chars().any(char::is_control) {
            Self::Number(number)
        } else {
            Self::Key(key.to_owned())
        }
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "entry {key:?}"),
            Self::Number(number) => write!(f, "entry number {number}"),
        }
    }
}
