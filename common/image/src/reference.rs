//! Image references in one canonical form.
//!
//! All spellings of one name are the same function everywhere: for example `set-image:v0.4` and
//! `ghcr.io/kptdev/krm-functions-catalog/set-image:v0.4`. The grammar is that of the distribution
//! project. The short forms are those of Docker (`foo/bar` is on Docker Hub) and kpt (a bare name
//! gets the default prefix).

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// Longest text that is parsed, in bytes. It is far above the longest valid reference, and limits
/// error texts.
pub const MAX_REFERENCE_LEN: usize = 1024;

const MAX_NAME_LEN: usize = 255;
const MAX_TAG_LEN: usize = 128;
const DOCKER_HUB: &str = "docker.io";

/// Why a text is not an image reference. The same input always has the same message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image reference {0}")]
pub struct ReferenceError(String);

// The accepted texts of each part, for error messages.
const REGISTRY: &str =
    "host[:port]; the host has letters, digits, '-' and '.', or is an IPv6 address in brackets";
const REPOSITORY: &str = "lowercase letters and digits, separated by '.', '_', '__' or '-'";
const TAG: &str = "up to 128 letters, digits, '_', '.' and '-', not starting with '.' or '-'";
const DIGEST: &str = "sha256 or sha512, a colon and its hex digits in lowercase";

/// A valid image reference in canonical form: `registry/path[:tag][@digest]`, with a tag, a digest
/// or both.
///
/// Compared, ordered and hashed by this text. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image(Arc<str>);

impl Image {
    /// Parses a reference and makes it canonical:
    ///
    /// * a name without `/` gets `default_prefix` and a `/` in front, unless the prefix is empty;
    /// * neither tag nor digest means `latest`;
    /// * the first part is the registry if it contains a `.` or `:` or is `localhost`; else the
    ///   registry is Docker Hub;
    /// * `index.docker.io` becomes `docker.io`, and a name without `/` there gets `library/`;
    /// * the registry becomes lowercase.
    ///
    /// # Errors
    /// A [`ReferenceError`] that quotes the reference with the prefix already applied.
    pub fn parse(image: &str, default_prefix: &str) -> Result<Self, ReferenceError> {
        let length = image.len().max(default_prefix.len());
        if length > MAX_REFERENCE_LEN {
            let problem = "is too long: the name may have 255 bytes and the tag 128";
            return Err(ReferenceError(format!("of {length} bytes {problem}")));
        }
        let (bare_name, tag, digest) = split(image);
        if bare_name.is_empty() {
            return Err(ReferenceError(format!(
                "{image:?} has no name: write [registry/]name[:tag][@digest]"
            )));
        }
        let name = with_prefix(bare_name, default_prefix);
        let image = || format!("{name}{}", &image[bare_name.len()..]);
        let malformed = |part, text, accepted| Err(malformed(&image(), part, text, accepted));
        let (registry, path) = split_registry(&name, looks_like_host);
        if !is_registry(registry) {
            return malformed("registry", registry, REGISTRY);
        }
        if let Some(part) = path.split('/').find(|part| !is_path_part(part)) {
            return malformed("repository part", part, REPOSITORY);
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return malformed("tag", tag, TAG);
        }
        if let Some(digest) = digest.filter(|digest| !is_digest(digest)) {
            return malformed("digest", digest, DIGEST);
        }

        let mut text = repository(registry, path);
        if text.len() > MAX_NAME_LEN {
            let length = text.len();
            return Err(ReferenceError(format!(
                "{:?} has a name of {length} bytes: it may have 255",
                image()
            )));
        }
        if let Some(tag) = tag.or(digest.is_none().then_some("latest")) {
            text.push(':');
            text.push_str(tag);
        }
        if let Some(digest) = digest {
            text.push('@');
            text.push_str(digest);
        }
        Ok(Self(text.into()))
    }

    /// The image of the same repository with this tag, and no digest.
    ///
    /// # Errors
    /// A [`ReferenceError`] for a malformed tag.
    pub fn with_tag(&self, tag: &str) -> Result<Self, ReferenceError> {
        let text = format!("{}:{tag}", self.repository());
        if is_tag(tag) { Ok(Self(text.into())) } else { Err(malformed(&text, "tag", tag, TAG)) }
    }

    /// The canonical reference.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The registry: `host` or `host:port`.
    pub fn registry(&self) -> &str {
        self.0.split_once('/').map_or("", |(registry, _)| registry)
    }

    /// Registry and path, without tag and digest.
    pub fn repository(&self) -> &str {
        split(&self.0).0
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.repository().rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The tag; `None` only if there is a digest.
    pub fn tag(&self) -> Option<&str> {
        split(&self.0).1
    }

    /// The digest, `algorithm:hex`.
    pub fn digest(&self) -> Option<&str> {
        split(&self.0).2
    }
}

fn malformed(image: &str, part: &str, text: &str, accepted: &str) -> ReferenceError {
    ReferenceError(format!("{image:?} has a malformed {part} {text:?}: write {accepted}"))
}

/// Name, tag and digest of `name[:tag][@digest]`.
pub(crate) fn split(reference: &str) -> (&str, Option<&str>, Option<&str>) {
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    // A colon before the last slash belongs to a port.
    match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag), digest),
        _ => (rest, None, digest),
    }
}

/// `name`, after the default prefix if it is a bare name.
pub(crate) fn with_prefix(name: &str, default_prefix: &str) -> String {
    match default_prefix.trim_end_matches('/') {
        prefix if !prefix.is_empty() && !name.contains('/') => format!("{prefix}/{name}"),
        _ => name.to_owned(),
    }
}

/// Registry and path. The first part is the registry if `is_host` accepts it; else the registry is
/// Docker Hub.
pub(crate) fn split_registry(name: &str, is_host: impl Fn(&str) -> bool) -> (&str, &str) {
    name.split_once('/').filter(|(first, _)| is_host(first)).unwrap_or((DOCKER_HUB, name))
}

/// Registry and path in canonical form.
pub(crate) fn repository(registry: &str, path: &str) -> String {
    let registry = registry.to_ascii_lowercase();
    let registry = if registry == "index.docker.io" { DOCKER_HUB } else { &registry };
    // A pattern's `**` may match several parts.
    let is_single = !path.contains('/') && !path.contains("**");
    format!("{registry}/{}{path}", if registry == DOCKER_HUB && is_single { "library/" } else { "" })
}

pub(crate) fn looks_like_host(part: &str) -> bool {
    part.contains(['.', ':']) || part.eq_ignore_ascii_case("localhost")
}

fn is_registry(registry: &str) -> bool {
    if let Some(rest) = registry.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok()
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (host, port) = registry.split_once(':').map_or((registry, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    // Digits only: the integer parser also accepts a sign.
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_path_part(part: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separator =
        |between: &str| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-');
    part.starts_with(word) && part.ends_with(word) && part.split(word).all(separator)
}

/// Whether an image can have this tag.
pub fn is_tag(tag: &str) -> bool {
    tag.len() <= MAX_TAG_LEN
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Whether this is the digest of an image: `sha256` or `sha512`, a colon and hex digits.
pub fn is_digest(digest: &str) -> bool {
    let (hex, length) = match digest.split_once(':') {
        Some(("sha256", hex)) => (hex, 64),
        Some(("sha512", hex)) => (hex, 128),
        _ => return false,
    };
    hex.len() == length && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
