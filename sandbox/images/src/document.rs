//! Manifests, indexes and configurations of images. Reading one checks that it is what it claims to
//! be, and that this machine can run it. No I/O.

use std::collections::HashMap;

use porch_fn_image::is_digest;
use porch_fn_registry::Platform;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::StoreError;

const MANIFEST: &str = "manifest";
const CONFIG: &str = "configuration";
/// Largest document, in bytes.
pub(crate) const MAX_DOCUMENT: u64 = 8 << 20;
/// As many layers as overlayfs stacks at most is 500; Docker refuses more than 127.
const MAX_LAYERS: usize = 200;

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

/// A reference to content in a document.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    platform: Option<WirePlatform>,
    pub(crate) annotations: Option<HashMap<String, Option<String>>>,
}

#[derive(Debug, Clone, Deserialize)]
struct WirePlatform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// A manifest for one platform, or an index, which has `manifests`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Document {
    schema_version: u64,
    pub(crate) media_type: String,
    artifact_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Option<Vec<Descriptor>>,
    pub(crate) manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
struct WireConfig {
    config: Option<RunConfig>,
    rootfs: WireLayers,
}

#[derive(Deserialize)]
struct WireLayers {
    diff_ids: Option<Vec<String>>,
}

/// Go's tools write null for what is empty.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Reads JSON. An error names the field.
pub(crate) fn json<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, StoreError> {
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(bytes))
        .map_err(|error| StoreError::document(what, error.to_string().escape_debug()))
}

/// Reads an index or a manifest. No document may be readable as both (CVE-2021-41190).
pub(crate) fn read(bytes: &[u8]) -> Result<Document, StoreError> {
    let document: Document = json(MANIFEST, bytes)?;
    let Document { media_type, artifact_type, config, .. } = &document;
    let layers = document.layers.as_deref().unwrap_or_default();
    let is_index = document.manifests.is_some();
    let is_manifest = !config.digest.is_empty() || document.layers.is_some();
    let is_named_index = media_type.contains("index") || media_type.contains("manifest.list");
    let kind = if artifact_type.is_empty() { &config.media_type } else { artifact_type };
    let is_image = kind.contains(".oci.image.config.") || kind.contains(".docker.container.image.");
    let is_layer = |kind: &String| kind.contains(".layer.") || kind.contains(".rootfs.");
    let other = layers.iter().map(|layer| &layer.media_type).find(|kind| !is_layer(kind));
    let problem = if document.schema_version == 1 {
        "it is of Docker's schema 1, which is not read: push the image again".to_owned()
    } else if is_index == is_manifest {
        let both = if is_index { "both an index and" } else { "neither an index nor" };
        format!("it is {both} the manifest of one platform")
    } else if !media_type.is_empty() && is_named_index != is_index {
        format!("it says that it is {media_type:?}, and is not")
    } else if is_index {
        return Ok(document);
    } else if !is_image {
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
        return Ok(document);
    };
    Err(StoreError::document(MANIFEST, problem))
}

/// Reads a manifest for one platform.
pub(crate) fn manifest(bytes: &[u8]) -> Result<Document, StoreError> {
    let document = read(bytes)?;
    let problem = || StoreError::document(MANIFEST, "it is an index in an index");
    if document.manifests.is_none() { Ok(document) } else { Err(problem()) }
}

/// The entry of an index for this machine's platform.
pub(crate) fn choose(entries: &[Descriptor]) -> Result<String, StoreError> {
    let platform = Platform::default();
    let best = platform.best(entries, |entry| entry.platform.as_ref().map(normal));
    let best = best.map(|entry| entry.digest.clone());
    best.ok_or_else(|| StoreError::document("index", format!("the image is not built for {platform}")))
}

/// Reads the configuration of a manifest. Returns the layers, too, the lowest first.
pub(crate) fn parse(manifest: &Document, config: &[u8]) -> Result<(RunConfig, Vec<Layer>), StoreError> {
    let problem = |reason: String| Err(StoreError::document(CONFIG, reason));
    let platform = normal(&json(CONFIG, config)?);
    let WireConfig { config: run, rootfs } = json(CONFIG, config)?;
    let own = Platform::default();
    if !own.runs(&platform) {
        return problem(format!("the image is for {:?}, and this machine is {own}", platform.to_string()));
    }
    let layers = manifest.layers.as_deref().unwrap_or_default();
    let diff_ids = rootfs.diff_ids.unwrap_or_default();
    if layers.len() != diff_ids.len() || !diff_ids.iter().all(|digest| is_digest(digest)) {
        return problem("its digests of layers are malformed, or others than the manifest's".to_owned());
    }
    let layers = layers.iter().zip(diff_ids);
    let layers = layers.map(|(it, diff_id)| Layer { digest: it.digest.clone(), size: it.size, diff_id });
    Ok((run.unwrap_or_default(), layers.collect()))
}

fn normal(platform: &WirePlatform) -> Platform {
    let variant = platform.variant.as_deref().unwrap_or_default();
    Platform::new(&platform.os, &platform.architecture, variant)
}

// === impl RunConfig ===

impl RunConfig {
    /// The command: ENTRYPOINT and these arguments, or else CMD.
    pub fn command(&self, args: &[String]) -> Vec<String> {
        let args = if args.is_empty() { &self.cmd } else { args };
        self.entrypoint.iter().chain(args).cloned().collect()
    }
}
