//! Manifests, indexes and image configurations of Docker and OCI: bytes in, values out. Pure.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::RegistryError;
use crate::error::json;
use crate::platform::Platform;

/// What is asked for, the multi-platform kinds first.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

const MANIFEST: &str = "manifest";
const CONFIG: &str = "image configuration";

/// A manifest or an index, reduced to what is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// Of one platform.
    Manifest {
        /// Its image configuration.
        config: Descriptor,
    },
    /// Of several.
    Index(Vec<IndexEntry>),
}

/// What a document says of another one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
}

/// One platform of an index.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct IndexEntry {
    #[serde(flatten)]
    pub(crate) descriptor: Descriptor,
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
#[serde(rename_all = "camelCase")]
struct WireDocument {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<IgnoredAny>,
    manifests: Option<Vec<IndexEntry>>,
}

/// Reads what came under `content_type`.
pub(crate) fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Document, RegistryError> {
    let wire: WireDocument = json(bytes, MANIFEST)?;
    let announced = content_type.unwrap_or_default();
    let named = wire.media_type.as_deref().unwrap_or_default();
    if wire.schema_version == Some(1) || is_schema1(announced) || is_schema1(named) {
        return Err(RegistryError::malformed(
            MANIFEST,
            "it is of Docker's schema 1, which is not read: push the image again",
        ));
    }
    // A client that reads it as the other kind would run something else.
    if wire.manifests.is_some() && (wire.config.is_some() || wire.layers.is_some()) {
        return Err(RegistryError::malformed(
            MANIFEST,
            "it is both an index and the manifest of one platform",
        ));
    }
    let is_index = match (is_index(announced), is_index(named)) {
        (Some(announced), Some(named)) if announced != named => {
            return Err(RegistryError::malformed(MANIFEST, "its mediaType and its Content-Type differ"));
        }
        (announced, named) => named.or(announced).unwrap_or(wire.manifests.is_some()),
    };
    if is_index {
        let missing = || RegistryError::malformed(MANIFEST, "the index has no manifests");
        Ok(Document::Index(wire.manifests.ok_or_else(missing)?))
    } else {
        let missing = || RegistryError::malformed(MANIFEST, "it has no config");
        Ok(Document::Manifest { config: wire.config.ok_or_else(missing)? })
    }
}

/// `None` for a media type that is neither.
fn is_index(media_type: &str) -> Option<bool> {
    match essence(media_type).as_str() {
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => Some(true),
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => Some(false),
        _ => None,
    }
}

fn is_schema1(media_type: &str) -> bool {
    essence(media_type).starts_with("application/vnd.docker.distribution.manifest.v1+")
}

/// Without parameters, in lower case.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The entry for the platform: the best of those that run there.
pub(crate) fn choose<'a>(
    entries: &'a [IndexEntry],
    platform: &Platform,
) -> Result<&'a Descriptor, RegistryError> {
    let of = |wanted: &Platform| {
        entries.iter().find(|entry| {
            entry.platform.as_ref().is_some_and(|it| {
                Platform::new(&it.os, &it.architecture, it.variant.as_deref().unwrap_or_default()) == *wanted
            })
        })
    };
    platform
        .runs()
        .iter()
        .find_map(of)
        // An entry may leave out its platform: then only the image configuration knows.
        .or_else(|| entries.iter().find(|entry| entry.platform.is_none()))
        .map(|entry| &entry.descriptor)
        .ok_or_else(|| RegistryError::Platform { platform: platform.to_string() })
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
