//! The form of the OCI image layout: `index.json` names manifests by digest.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

use porch_fn_registry::Platform;

use super::{Archive, Found, problem, read_document};
use crate::StoreError;
use crate::document::{self, Descriptor, Document};

/// The image's full name, by containerd and Docker.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The image's tag, or its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

// === impl Archive ===

impl Archive {
    pub(super) fn oci(&self, platform: &Platform) -> Result<Vec<Found>, StoreError> {
        let Document::Index(entries) = document::read(&self.document("index.json")?.unwrap_or_default())?
        else {
            return Err(problem("its index.json is not an index"));
        };
        let found = entries.into_iter().map(|entry| {
            let bytes = read_document(&self.by_digest(&entry.digest)?)?;
            let (index, manifest) = match document::read(&bytes)? {
                Document::Manifest(_) => (None, bytes),
                Document::Index(nested) => {
                    let chosen = document::choose(&nested, platform)?;
                    (Some(entry.digest.clone()), read_document(&self.by_digest(&chosen)?)?)
                }
            };
            Ok(Found { names: names(entry), index, manifest })
        });
        found.collect()
    }
}

/// A reference without a registry or a path is only a tag.
fn names(mut descriptor: Descriptor) -> Vec<String> {
    let full = descriptor.annotations.remove(CONTAINERD_NAME);
    let other = descriptor.annotations.remove(REF_NAME).filter(|name| name.contains(['/', ':']));
    full.or(other).into_iter().collect()
}
