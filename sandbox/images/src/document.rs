//! Manifests, indexes and configurations of images. Reading one checks that it is what it claims to
//! be, and that this machine can run it. No I/O.

use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};
use porch_fn_image::is_digest;
use porch_fn_registry::Platform;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::StoreError;

const MANIFEST: &str = "manifest";
const CONFIG: &str = "configuration";
/// Largest document, in bytes.
pub(crate) const MAX_DOCUMENT: u64 = 8 << 20;
/// As many layers as overlayfs stacks at most is 500; Docker refuses more than 127.
const MAX_LAYERS: usize = 200;

/// What an image says about its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// ENTRYPOINT.
    pub entrypoint: Vec<String>,
    /// CMD: arguments of ENTRYPOINT, or the command.
    pub cmd: Vec<String>,
    /// ENV, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// WORKDIR. Empty: `/`.
    pub folder: String,
    /// USER: `user`, `uid`, `user:group`, `uid:gid`. Empty if the image names none.
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

/// What a manifest and its configuration say.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) run: RunConfig,
    /// The digest of the configuration.
    pub(crate) config: String,
    /// The layers, lowest first.
    pub(crate) layers: Vec<Layer>,
}

// === impl RunConfig ===

impl RunConfig {
    /// The command: ENTRYPOINT and these arguments, or else CMD.
    pub fn command(&self, args: &[String]) -> Vec<String> {
        let args = if args.is_empty() { &self.cmd } else { args };
        self.entrypoint.iter().chain(args).cloned().collect()
    }
}

/// Reads JSON. An error names the field.
pub(crate) fn json<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, StoreError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| StoreError::document(what, format!("{:?}", error.to_string()).trim_matches('"')))
}

/// Whether the document is an index. It must not be readable as both index and manifest
/// (CVE-2021-41190).
pub(crate) fn is_index(bytes: &[u8]) -> Result<bool, StoreError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape {
        schema_version: Option<u64>,
        #[serde(default)]
        media_type: String,
        config: Option<IgnoredAny>,
        layers: Option<IgnoredAny>,
        manifests: Option<IgnoredAny>,
    }
    let shape: Shape = json(MANIFEST, bytes)?;
    let claims_index = shape.media_type.contains("index") || shape.media_type.contains("manifest.list");
    let problem = match (shape.manifests.is_some(), shape.config.is_some() || shape.layers.is_some()) {
        _ if shape.schema_version == Some(1) => {
            "it is of Docker's schema 1, which is not read: push the image again"
        }
        (true, true) => "it is both an index and the manifest of one platform",
        (false, false) => "it is neither an index nor the manifest of one platform",
        (is_index, _) if shape.media_type.is_empty() || is_index == claims_index => return Ok(is_index),
        _ => "it claims to be an index, or an index claims to be a manifest",
    };
    Err(StoreError::document(MANIFEST, problem))
}

pub(crate) fn index(bytes: &[u8]) -> Result<ImageIndex, StoreError> {
    json("index", bytes)
}

/// Reads a manifest for one platform.
pub(crate) fn manifest(bytes: &[u8]) -> Result<ImageManifest, StoreError> {
    let problem = |reason: String| Err(StoreError::document(MANIFEST, reason));
    if is_index(bytes)? {
        return problem("it is an index".to_owned());
    }
    let manifest: ImageManifest = json(MANIFEST, bytes)?;
    let config = manifest.config();
    let kind = manifest.artifact_type().as_ref().unwrap_or(config.media_type()).to_string();
    if !kind.starts_with("application/vnd.oci.image.config.")
        && !kind.starts_with("application/vnd.docker.container.image.")
    {
        return problem(format!("it is not of an image, but of {kind:?}"));
    }
    if config.size() > MAX_DOCUMENT {
        return problem("its configuration is larger than 8 MiB".to_owned());
    }
    if manifest.layers().len() > MAX_LAYERS {
        return problem(format!("it has more than {MAX_LAYERS} layers"));
    }
    for layer in manifest.layers() {
        let kind = layer.media_type().to_string();
        if kind.contains("encrypted") {
            return problem("a layer is encrypted: use an image without encryption".to_owned());
        }
        if !kind.contains(".layer.") && !kind.contains(".rootfs.") {
            return problem(format!("a layer is not of files, but of {kind:?}"));
        }
    }
    let digests = manifest.layers().iter().chain([config]).map(|it| it.digest().to_string());
    if digests.into_iter().all(|digest| is_digest(&digest)) {
        Ok(manifest)
    } else {
        problem("a digest in it is of an unknown algorithm".to_owned())
    }
}

/// Reads the configuration of a manifest.
pub(crate) fn parse(manifest: &ImageManifest, config: &[u8]) -> Result<Parsed, StoreError> {
    let problem = |reason: String| Err(StoreError::document(CONFIG, reason));
    let image: ImageConfiguration = json(CONFIG, config)?;
    let variant = image.variant().as_deref().unwrap_or_default();
    let platform = Platform::new(&image.os().to_string(), &image.architecture().to_string(), variant);
    let own = Platform::default();
    if !own.runs(&platform) {
        return problem(format!("the image is for {:?}, and this machine is {own}", platform.to_string()));
    }
    let diff_ids = image.rootfs().diff_ids();
    if manifest.layers().len() != diff_ids.len() {
        return problem("it has another number of layers than the manifest".to_owned());
    }
    if !diff_ids.iter().all(|digest| is_digest(digest)) {
        return problem("a layer's digest in it is of an unknown algorithm".to_owned());
    }
    let layers = manifest.layers().iter().zip(diff_ids).map(|(layer, diff_id)| Layer {
        digest: layer.digest().to_string(),
        size: layer.size(),
        diff_id: diff_id.clone(),
    });
    let config = image.config().clone().unwrap_or_default();
    let run = RunConfig {
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        cmd: config.cmd().clone().unwrap_or_default(),
        env: config.env().clone().unwrap_or_default(),
        folder: config.working_dir().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
    };
    Ok(Parsed { run, config: manifest.config().digest().to_string(), layers: layers.collect() })
}
