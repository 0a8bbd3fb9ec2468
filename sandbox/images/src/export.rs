//! Exports an image as an OCI archive, which `porch-fn images import`, Docker, podman and skopeo
//! read. The blobs are those of the registry, so digests stay the same.

use std::fs::File;
use std::io::{Read, Write};

use porch_fn_image::Image;
use serde_json::json;
use tar::{Builder, Header};

use crate::content::is_intact;
use crate::document;
use crate::error::{OnDisk as _, StoreError};
use crate::store::Store;

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
        let info = self.load(image)?.ok_or_else(missing)?;
        let bytes = self.blob(&info.record.manifest)?.ok_or_else(missing)?;
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
                "digest": info.record.manifest,
                "size": bytes.len(),
                "annotations": annotations,
            }],
        });
        let mut tar = Builder::new(stream);
        let mut add = |name: &str, size: u64, data: &mut dyn Read| -> Result<(), StoreError> {
            let mut header = Header::new_gnu();
            header.set_size(size);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, data).map_err(StoreError::Stream)
        };
        let layout = r#"{"imageLayoutVersion":"1.0.0"}"#;
        for (name, text) in [("oci-layout", layout), ("index.json", &index.to_string())] {
            add(name, text.len() as u64, &mut text.as_bytes())?;
        }
        for digest in info.blobs() {
            let path = self.blob_path(digest);
            if !is_intact(&path, digest)? {
                return Err(StoreError::Damaged(path));
            }
            let mut file = File::open(&path).on_disk("cannot read", &path)?;
            let size = file.metadata().on_disk("cannot read", &path)?.len();
            add(&format!("blobs/{}", digest.replacen(':', "/", 1)), size, &mut file)?;
        }
        tar.into_inner().and_then(|mut stream| stream.flush()).map_err(StoreError::Stream)
    }
}
