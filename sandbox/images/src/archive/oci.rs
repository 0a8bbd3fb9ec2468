//! The form of the OCI image layout: `index.json` names manifests by digest.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

use oci_spec::image::{Descriptor, ImageIndex};
use porch_fn_registry::Platform;

use super::{Archive, Found, problem, read_document};
use crate::{StoreError, document};

/// The image's full name, by containerd and Docker.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The image's tag, or its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

// === impl Archive ===

impl Archive {
    pub(super) fn oci(&self, platform: &Platform) -> Result<Vec<Found>, StoreError> {
        let layout = document::index(&self.document("index.json")?.unwrap_or_default())?;
        let mut found = Vec::new();
        for descriptor in layout.manifests() {
            let mut bytes = read_document(&self.by_digest(descriptor.digest().as_ref())?)?;
            let mut index = None;
            if document::is_index(&bytes)? {
                let nested = document::index(&bytes)?;
                index = Some(descriptor.digest().to_string());
                bytes = read_document(&self.by_digest(choose(&nested, platform)?.digest().as_ref())?)?;
            }
            found.push(Found { names: names(descriptor), index, manifest: bytes });
        }
        Ok(found)
    }
}

/// A reference without a registry or a path is only a tag.
fn names(descriptor: &Descriptor) -> Vec<String> {
    let annotations = descriptor.annotations().as_ref();
    let annotation = |name| annotations.and_then(|annotations| annotations.get(name)).cloned();
    let name =
        annotation(CONTAINERD_NAME).or_else(|| annotation(REF_NAME).filter(|name| name.contains(['/', ':'])));
    name.into_iter().collect()
}

fn choose<'a>(index: &'a ImageIndex, platform: &Platform) -> Result<&'a Descriptor, StoreError> {
    let best = platform.best(index.manifests(), |entry| {
        let it = entry.platform().as_ref()?;
        let variant = it.variant().as_deref().unwrap_or_default();
        Some(Platform::new(&it.os().to_string(), &it.architecture().to_string(), variant))
    });
    best.ok_or_else(|| problem(format!("an image in it is not built for {platform}")))
}
