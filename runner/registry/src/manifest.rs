//! Manifests, indexes and image configurations of Docker and OCI: bytes in, values out. Pure.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::RegistryError;
use crate::error::{CONFIG, MANIFEST, json};
use crate::platform::Platform;

/// What is asked for, the multi-platform kinds first.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A manifest or an index, reduced to what is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// The digest of the image configuration of one platform.
    Manifest(String),
    /// Several platforms.
    Index(Vec<IndexEntry>),
}

/// One platform of an index.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct IndexEntry {
    digest: String,
    platform: Option<WirePlatform>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct WirePlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireDocument {
    schema_version: Option<u64>,
    config: Option<Descriptor>,
    layers: Option<IgnoredAny>,
    manifests: Option<Vec<IndexEntry>>,
}

/// Reads a manifest or an index. Its fields decide which it is, whatever media type it came under.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, RegistryError> {
    let wire: WireDocument = json(bytes, MANIFEST)?;
    let problem = match wire {
        WireDocument { schema_version: Some(1), .. } => {
            "it is of Docker's schema 1, which is not read: push the image again"
        }
        WireDocument { manifests: Some(entries), config: None, layers: None, .. } => {
            return Ok(Document::Index(entries));
        }
        WireDocument { manifests: None, config: Some(config), .. } => {
            return Ok(Document::Manifest(config.digest));
        }
        WireDocument { manifests: None, .. } => "it has no config",
        // A client that reads it as the other kind would run something else.
        _ => "it is both an index and the manifest of one platform",
    };
    Err(RegistryError::malformed(MANIFEST, problem))
}

/// The digest of the entry for the platform: the best of those that run there.
pub(crate) fn choose<'a>(entries: &'a [IndexEntry], platform: &Platform) -> Result<&'a str, RegistryError> {
    let of = |wanted: &Platform| {
        entries.iter().find(|entry| {
            entry.platform.as_ref().is_some_and(|it| {
                Platform::new(&it.os, &it.architecture, it.variant.as_deref().unwrap_or_default()) == *wanted
            })
        })
    };
    // An entry may leave out its platform: then only the image configuration knows.
    let unnamed = || entries.iter().find(|entry| entry.platform.is_none());
    let best = platform.runs().iter().find_map(of).or_else(unnamed);
    best.map(|entry| &*entry.digest).ok_or_else(|| RegistryError::Platform { platform: platform.to_string() })
}

#[derive(Deserialize)]
struct WireImage {
    config: Option<WireConfig>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct WireConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

/// What the image runs, by Docker's rules: ENTRYPOINT with CMD behind it, or CMD alone.
///
/// The platform of the configuration does not matter: an image without an index is taken for the
/// one that was meant, and the node reports whether it can run it.
pub(crate) fn command(bytes: &[u8]) -> Result<Vec<String>, RegistryError> {
    let image: WireImage = json(bytes, CONFIG)?;
    let WireConfig { entrypoint, cmd } = image.config.unwrap_or_default();
    let command: Vec<_> = [entrypoint, cmd].into_iter().flatten().flatten().collect();
    if command.is_empty() { Err(RegistryError::NoCommand) } else { Ok(command) }
}
