//! Manifests, indexes and image configurations of Docker and OCI: parsed from bytes. No I/O.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::RegistryError;
use crate::error::{CONFIG, MANIFEST, json};
use crate::platform::Platform;

/// The `Accept` header, with the multi-platform media types first.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A manifest or an index, reduced to the fields that the runner needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// The digest of the image configuration of one platform.
    Manifest(String),
    /// The manifests of several platforms.
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

/// Reads a manifest or an index. The fields decide which of them it is; the media type is ignored.
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
        // Two clients could read such a document differently and run different images.
        _ => "it is both an index and the manifest of one platform",
    };
    Err(RegistryError::malformed(MANIFEST, problem))
}

/// Returns the digest of the best entry that runs on the platform.
pub(crate) fn choose<'a>(entries: &'a [IndexEntry], platform: &Platform) -> Result<&'a str, RegistryError> {
    let best = platform.best(entries, |entry| {
        let it = entry.platform.as_ref()?;
        Some(Platform::new(&it.os, &it.architecture, it.variant.as_deref().unwrap_or_default()))
    });
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

/// Returns the command of the image by Docker's rules: ENTRYPOINT followed by CMD, or CMD alone.
///
/// Ignores the platform of the configuration. If an image has no index, the node reports whether it
/// can run the image.
pub(crate) fn command(bytes: &[u8]) -> Result<Vec<String>, RegistryError> {
    let image: WireImage = json(bytes, CONFIG)?;
    let WireConfig { entrypoint, cmd } = image.config.unwrap_or_default();
    let command: Vec<_> = [entrypoint, cmd].into_iter().flatten().flatten().collect();
    if command.is_empty() { Err(RegistryError::NoCommand) } else { Ok(command) }
}
