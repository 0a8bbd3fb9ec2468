//! Exports an image as an OCI archive, which `porch-fn images import`, Docker, podman and skopeo
//! read. The blobs are those of the registry, so digests stay the same.

use std::fs::File;
use std::io::{self, Read, Write};

use porch_fn_image::Image;
use porch_fn_registry::Hasher;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::content::Hashed;
use crate::document;
use crate::error::{OnDisk as _, StoreError};
use crate::store::{Record, Store};

/// What a manifest is that does not say it.
const MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

// === impl Store ===

impl Store {
    /// Writes the image to the stream, and verifies each blob.
    ///
    /// # Errors
    /// [`StoreError::Missing`], if the image is not here, and [`StoreError::Damaged`].
    pub fn export(&self, image: &Image, stream: impl Write) -> Result<(), StoreError> {
        let missing = || StoreError::Missing(self.folder().to_owned());
        let _lease = self.find(image)?.ok_or_else(missing)?;
        let (Record { manifest: digest, .. }, parsed) = self.load(image)?.ok_or_else(missing)?;
        let bytes = self.blob(&digest)?.ok_or_else(missing)?;
        let media_type = document::manifest(&bytes)?.media_type;
        let media_type = if media_type.is_empty() { MEDIA_TYPE } else { &media_type };
        let mut annotations = json!({"io.containerd.image.name": image.as_str()});
        if let Some(tag) = image.tag() {
            annotations["org.opencontainers.image.ref.name"] = tag.into();
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": media_type,
                "digest": digest,
                "size": bytes.len(),
                "annotations": annotations,
            }],
        });
        let mut tar = Builder::new(stream);
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        add(&mut tar, "oci-layout", layout.len() as u64, &layout[..]).map_err(StoreError::Stream)?;
        let index = index.to_string();
        add(&mut tar, "index.json", index.len() as u64, index.as_bytes()).map_err(StoreError::Stream)?;
        let layers = parsed.layers.iter().map(|layer| &layer.digest);
        for digest in [&digest, &parsed.config].into_iter().chain(layers) {
            let path = self.blob_path(digest);
            let file = File::open(&path).on_disk("cannot read", &path)?;
            let size = file.metadata().on_disk("cannot read", &path)?.len();
            let hasher = Hasher::of(digest).ok_or_else(missing)?;
            let mut data = Hashed::new(file, hasher);
            let name = format!("blobs/{}", digest.replacen(':', "/", 1));
            add(&mut tar, &name, size, (&mut data).take(size)).map_err(StoreError::Stream)?;
            if data.finish().on_disk("cannot read", &path)? != *digest {
                return Err(StoreError::Damaged(path));
            }
        }
        tar.into_inner().and_then(|mut stream| stream.flush()).map_err(StoreError::Stream)
    }
}

fn add(tar: &mut Builder<impl Write>, name: &str, size: u64, data: impl io::Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, data)
}
