//! Manifests, indexes and configurations of images, by Docker and OCI: parsed from bytes. No I/O.
//!
//! A lookup reads which image a reference means, and its command. It accepts more than
//! [`Document::read`] does, because the node that runs the image decides what else it can use, such
//! as encrypted layers. [`Document::read`] is for the machine that unpacks and runs the image with
//! this program.

#[cfg(test)]
mod tests;

use porch_fn_image::is_digest;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::RegistryError;
use crate::error::{CONFIG, MANIFEST, RUN_CONFIG, json, read_json};
use crate::platform::Platform;

/// The `Accept` header, with the multi-platform media types first.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// Largest document of an image that this machine runs, in bytes.
pub const MAX_DOCUMENT: u64 = 8 << 20;
/// As many layers as overlayfs stacks at most is 500; Docker refuses more than 127.
const MAX_LAYERS: usize = 200;

/// A manifest or an index. `S` is the type of sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one exists at a time")]
pub enum Document<S = u64> {
    /// The manifest for one platform.
    Manifest(ImageManifest<S>),
    /// The manifests of several platforms.
    Index(Vec<Descriptor<S>>),
}

/// A document for a lookup, which needs no sizes.
pub(crate) type Found = Document<Option<IgnoredAny>>;

/// The manifest of an image for one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageManifest<S = u64> {
    /// What the manifest says that it is. Empty: nothing.
    pub media_type: String,
    artifact_type: String,
    /// The image configuration.
    pub config: Descriptor<S>,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor<S>>,
}

/// A reference to content in a document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor<S = u64> {
    #[serde(default, deserialize_with = "nullable")]
    media_type: String,
    /// The content's digest, which may be malformed in an index.
    pub digest: String,
    /// The content's size, in bytes.
    pub size: S,
    platform: Option<Platform>,
    /// An object, or null.
    #[serde(default)]
    pub annotations: Value,
}

/// What an image says about its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// ENTRYPOINT.
    #[serde(deserialize_with = "nullable")]
    pub entrypoint: Vec<String>,
    /// CMD: arguments of ENTRYPOINT, or the command.
    #[serde(deserialize_with = "nullable")]
    pub cmd: Vec<String>,
    /// ENV, each `NAME=VALUE`.
    #[serde(deserialize_with = "nullable")]
    pub env: Vec<String>,
    /// WORKDIR. Empty: `/`.
    #[serde(rename = "WorkingDir", deserialize_with = "nullable")]
    pub folder: String,
    /// USER: `user`, `uid`, `user:group`, `uid:gid`. Empty if the image names none.
    #[serde(deserialize_with = "nullable")]
    pub user: String,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The digest of the layer as it is in the registry.
    pub digest: String,
    /// Its size there, in bytes.
    pub size: u64,
    /// The digest of its tar stream.
    pub diff_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireDocument<S> {
    schema_version: Option<u64>,
    #[serde(default, deserialize_with = "nullable")]
    media_type: String,
    #[serde(default, deserialize_with = "nullable")]
    artifact_type: String,
    config: Option<Descriptor<S>>,
    layers: Option<Vec<Descriptor<S>>>,
    manifests: Option<Vec<Descriptor<S>>>,
}

#[derive(Deserialize)]
struct WireImage {
    config: Option<RunConfig>,
    #[serde(default)]
    rootfs: WireLayers,
}

#[derive(Default, Deserialize)]
struct WireLayers {
    diff_ids: Option<Vec<String>>,
}

/// Go's tools write null for what is empty.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Reads a manifest or an index for a lookup.
pub(crate) fn parse(bytes: &[u8]) -> Result<Found, RegistryError> {
    Found::new(json(bytes, MANIFEST)?).map_err(|problem| RegistryError::malformed(MANIFEST, problem))
}

/// Returns the digest of the best entry that runs on the platform. An entry may omit its platform:
/// then only the image configuration names it.
///
/// # Errors
/// [`RegistryError::Platform`].
pub fn choose<'a, S>(entries: &'a [Descriptor<S>], platform: &Platform) -> Result<&'a str, RegistryError> {
    let of = |wanted: Option<&Platform>| entries.iter().find(|entry| entry.platform.as_ref() == wanted);
    let best = platform.compatible().iter().find_map(|it| of(Some(it))).or_else(|| of(None));
    best.map(|entry| &*entry.digest).ok_or_else(|| RegistryError::Platform(platform.clone()))
}

/// Returns the command of the image by Docker's rules: ENTRYPOINT followed by CMD, or CMD alone.
///
/// Ignores the platform of the configuration. If an image has no index, the node reports whether it
/// can run the image.
pub(crate) fn command(bytes: &[u8]) -> Result<Vec<String>, RegistryError> {
    let image: WireImage = json(bytes, CONFIG)?;
    let command = image.config.unwrap_or_default().command(&[]);
    if command.is_empty() { Err(RegistryError::NoCommand) } else { Ok(command) }
}

// === impl Document ===

impl<S> Document<S> {
    /// The fields decide which of them it is. Two clients could read other documents differently
    /// and run different images (CVE-2021-41190).
    fn new(wire: WireDocument<S>) -> Result<Self, &'static str> {
        match wire {
            WireDocument { schema_version: Some(1), .. } => {
                Err("it is of Docker's schema 1, which is not read: push the image again")
            }
            WireDocument { manifests: Some(entries), config: None, layers: None, .. } => {
                Ok(Self::Index(entries))
            }
            WireDocument {
                manifests: None, config: Some(config), layers, media_type, artifact_type, ..
            } => {
                let layers = layers.unwrap_or_default();
                Ok(Self::Manifest(ImageManifest { media_type, artifact_type, config, layers }))
            }
            WireDocument { manifests: None, layers: None, .. } => {
                Err("it is neither an index nor the manifest of one platform")
            }
            WireDocument { manifests: None, .. } => Err("it has no config"),
            _ => Err("it is both an index and the manifest of one platform"),
        }
    }
}

impl Document {
    /// Reads an index, or the manifest of an image that this program can unpack.
    ///
    /// # Errors
    /// [`RegistryError::Unusable`].
    pub fn read(bytes: &[u8]) -> Result<Self, RegistryError> {
        let wire: WireDocument<u64> = read_json(bytes, MANIFEST)?;
        let media_type = wire.media_type.clone();
        let document = Self::new(wire).map_err(|problem| RegistryError::unusable(MANIFEST, problem))?;
        let is_named_index = media_type.contains("index") || media_type.contains("manifest.list");
        let problem = match &document {
            it if !media_type.is_empty() && is_named_index != matches!(it, Self::Index(_)) => {
                Some(format!("it says that it is {media_type:?}, and is not"))
            }
            Self::Manifest(manifest) => manifest.problem(),
            Self::Index(_) => None,
        };
        problem.map_or(Ok(document), |problem| Err(RegistryError::unusable(MANIFEST, problem)))
    }
}

// === impl ImageManifest ===

impl ImageManifest {
    /// Reads the manifest of an image that this program can unpack.
    ///
    /// # Errors
    /// [`RegistryError::Unusable`].
    pub fn read(bytes: &[u8]) -> Result<Self, RegistryError> {
        match Document::read(bytes)? {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(_) => Err(RegistryError::unusable(MANIFEST, "it is an index in an index")),
        }
    }

    /// Why this program cannot unpack the image.
    fn problem(&self) -> Option<String> {
        let Self { artifact_type, config, layers, .. } = self;
        let kind = if artifact_type.is_empty() { &config.media_type } else { artifact_type };
        let is_image = kind.contains(".oci.image.config.") || kind.contains(".docker.container.image.");
        let is_layer = |kind: &String| kind.contains(".layer.") || kind.contains(".rootfs.");
        let other = layers.iter().map(|layer| &layer.media_type).find(|kind| !is_layer(kind));
        Some(if !is_image {
            format!("it is not of an image, but of {kind:?}")
        } else if config.size > MAX_DOCUMENT || layers.len() > MAX_LAYERS {
            format!("it has more than {MAX_LAYERS} layers, or a configuration of 8 MiB")
        } else if layers.iter().any(|layer| layer.media_type.contains("encrypted")) {
            "a layer is encrypted: use an image without encryption".to_owned()
        } else if let Some(kind) = other {
            format!("a layer is not of files, but of {kind:?}")
        } else if !layers.iter().chain([config]).all(|it| is_digest(&it.digest)) {
            "a digest in it is of an unknown algorithm".to_owned()
        } else {
            return None;
        })
    }

    /// Reads the configuration. Returns how the image wants to be run, and its layers, the lowest
    /// first.
    ///
    /// # Errors
    /// [`RegistryError::Unusable`]: this machine cannot run the image, or the configuration belongs
    /// to another manifest.
    pub fn read_config(&self, bytes: &[u8]) -> Result<(RunConfig, Vec<Layer>), RegistryError> {
        let problem = |reason: String| Err(RegistryError::unusable(RUN_CONFIG, reason));
        let platform: Platform = read_json(bytes, RUN_CONFIG)?;
        let WireImage { config, rootfs } = read_json(bytes, RUN_CONFIG)?;
        let own = Platform::default();
        if !own.compatible().contains(&platform) {
            return problem(format!(
                "the image is for {:?}, and this machine is {own}",
                platform.to_string()
            ));
        }
        let diff_ids = rootfs.diff_ids.unwrap_or_default();
        if self.layers.len() != diff_ids.len() || !diff_ids.iter().all(|digest| is_digest(digest)) {
            return problem("its digests of layers are malformed, or others than the manifest's".to_owned());
        }
        let layers = self.layers.iter().zip(diff_ids);
        let layers = layers.map(|(it, diff_id)| Layer { digest: it.digest.clone(), size: it.size, diff_id });
        Ok((config.unwrap_or_default(), layers.collect()))
    }
}

// === impl RunConfig ===

impl RunConfig {
    /// The command: ENTRYPOINT and these arguments, or else CMD.
    pub fn command(&self, args: &[String]) -> Vec<String> {
        let args = if args.is_empty() { &self.cmd } else { args };
        self.entrypoint.iter().chain(args).cloned().collect()
    }
}
