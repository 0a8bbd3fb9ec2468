//! Manifests, indexes and image configurations of Docker and OCI: bytes in, values out. Pure.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::RegistryError;
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
    #[serde(default)]
    pub(crate) size: Option<u64>,
}

/// One platform of an index.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct IndexEntry {
    #[serde(flatten)]
    pub(crate) descriptor: Descriptor,
    #[serde(default)]
    platform: Option<WirePlatform>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct WirePlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<IgnoredAny>,
    manifests: Option<Vec<IndexEntry>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Manifest,
    Index,
}

/// Reads what came under `content_type`.
pub(crate) fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Document, RegistryError> {
    let wire: Wire = json(bytes, MANIFEST)?;
    let announced = content_type.unwrap_or_default();
    let named = wire.media_type.as_deref().unwrap_or_default();
    if wire.schema_version == Some(1) || is_schema1(announced) || is_schema1(named) {
        return Err(malformed(
            MANIFEST,
            "it is of Docker's schema 1, which is not read: push the image again",
        ));
    }
    // Whoever reads it as the other kind would run something else.
    if wire.manifests.is_some() && (wire.config.is_some() || wire.layers.is_some()) {
        return Err(malformed(MANIFEST, "it is both an index and the manifest of one platform"));
    }
    let kind = match (kind(announced), kind(named)) {
        (Some(announced), Some(named)) if announced != named => {
            return Err(malformed(MANIFEST, "its mediaType and its Content-Type differ"));
        }
        (_, Some(kind)) | (Some(kind), None) => kind,
        (None, None) if wire.manifests.is_some() => Kind::Index,
        (None, None) => Kind::Manifest,
    };
    match kind {
        Kind::Index => {
            let entries = wire.manifests.ok_or_else(|| malformed(MANIFEST, "the index has no manifests"))?;
            Ok(Document::Index(entries))
        }
        Kind::Manifest => {
            let config = wire.config.ok_or_else(|| malformed(MANIFEST, "it has no config"))?;
            Ok(Document::Manifest { config })
        }
    }
}

fn kind(media_type: &str) -> Option<Kind> {
    match essence(media_type).as_str() {
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => Some(Kind::Index),
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => Some(Kind::Manifest),
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
    #[serde(default)]
    config: Option<WireConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireConfig {
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
}

/// What the image runs, by Docker's rules: ENTRYPOINT with CMD behind it, or CMD alone.
///
/// Which platform the configuration names is not looked at: an image without an index is taken for the one that was
/// meant, and the node says whether it can run it.
pub(crate) fn command(bytes: &[u8]) -> Result<Vec<String>, RegistryError> {
    let image: WireImage = json(bytes, CONFIG)?;
    let config = image.config.unwrap_or(WireConfig { entrypoint: None, cmd: None });
    let mut command = config.entrypoint.unwrap_or_default();
    command.extend(config.cmd.unwrap_or_default());
    if command.is_empty() { Err(RegistryError::NoCommand) } else { Ok(command) }
}

/// serde's own words are left out: they quote what the registry sent.
pub(crate) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, RegistryError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let problem = match error.classify() {
            serde_json::error::Category::Data => "a field is missing or of the wrong type",
            serde_json::error::Category::Eof => "the JSON ends too early",
            _ => "it is not JSON",
        };
        malformed(what, &format!("{problem} (line {}, column {})", error.line(), error.column()))
    })
}

pub(crate) fn malformed(what: &'static str, reason: &str) -> RegistryError {
    RegistryError::Malformed { what, reason: reason.to_owned() }
}
