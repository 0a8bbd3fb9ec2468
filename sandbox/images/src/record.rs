//! What the store remembers about a reference.

use std::time::SystemTime;

use porch_fn_image::Image;
use porch_fn_registry::sha256;
use serde::{Deserialize, Serialize};

use crate::RunConfig;

/// The file of one reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The full reference, with its tag or digest.
    pub(crate) reference: String,
    /// What the reference resolved to: the digest of an index or of a manifest.
    pub(crate) resolved: String,
    /// The manifest for this machine's platform.
    pub(crate) manifest: String,
    /// The image configuration.
    pub(crate) config: String,
    /// The compressed layers, lowest first.
    pub(crate) blobs: Vec<String>,
    /// The digests of the layers' tar streams, lowest first.
    pub(crate) layers: Vec<String>,
    /// How the image wants to be run.
    pub(crate) run: RunConfig,
    /// When it was pulled or imported.
    pub(crate) pulled: SystemTime,
}

/// An image of the store, for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// The full reference, with its tag or digest.
    pub reference: String,
    /// The digest that the reference had when it was pulled.
    pub digest: String,
    /// Size of its layers, unpacked and compressed, in bytes. Images share layers.
    pub bytes: u64,
    /// When it was pulled or imported.
    pub pulled: SystemTime,
    /// When it was last used.
    pub used: SystemTime,
}

// === impl Record ===

impl Record {
    /// The name of the reference's file, without its extension.
    pub(crate) fn key(image: &Image) -> String {
        sha256(image.as_str().as_bytes())["sha256:".len()..][..32].to_owned()
    }

    /// The names of all blobs that the image needs.
    pub(crate) fn all_blobs(&self) -> impl Iterator<Item = &str> {
        [&self.manifest, &self.config].into_iter().chain(&self.blobs).map(String::as_str)
    }
}
