//! What the store remembers about a reference. All else is read from the manifest and the
//! configuration, whose digests are verified each time.

use std::time::SystemTime;

use porch_fn_image::Image;
use porch_fn_registry::sha256;
use serde::{Deserialize, Serialize};

/// The file of one reference. Files of older versions have more fields, and count as absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The full reference, with its tag or digest.
    pub(crate) reference: String,
    /// What the reference resolved to: the digest of an index or of a manifest.
    pub(crate) resolved: String,
    /// The manifest for this machine's platform.
    pub(crate) manifest: String,
    /// When it was pulled or imported.
    pub(crate) pulled: SystemTime,
}

// === impl Record ===

impl Record {
    /// A record without a reference.
    pub(crate) fn new(resolved: &str, manifest: &str) -> Self {
        let (resolved, manifest) = (resolved.to_owned(), manifest.to_owned());
        Self { reference: String::new(), resolved, manifest, pulled: SystemTime::now() }
    }

    /// The name of the reference's file, without its extension.
    pub(crate) fn key(image: &Image) -> String {
        sha256(image.as_str().as_bytes())["sha256:".len()..][..32].to_owned()
    }

    /// Whether the reference names a digest that is not this image's.
    pub(crate) fn contradicts(&self, image: &Image) -> bool {
        image.digest().is_some_and(|digest| digest != self.resolved && digest != self.manifest)
    }
}
