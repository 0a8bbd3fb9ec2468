//! Exports an image as an OCI archive, which `porch-fn images import`, Docker, podman and skopeo
//! read. The blobs are those of the registry, so digests stay the same.

use std::fs::File;
use std::io::{self, Write};

use oci_spec::image::ImageManifest;
use porch_fn_image::Image;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::StoreError;
use crate::error::OnDisk as _;
use crate::store::Store;

// === impl Store ===

impl Store {
    /// Writes the image to the stream.
    ///
    /// # Errors
    /// [`StoreError::Missing`], if the image is not here.
    pub fn export(&self, image: &Image, stream: impl Write) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let missing = || StoreError::Missing(self.folder().to_owned());
        let record = self.record(image)?.ok_or_else(missing)?;
        let manifest = self.blob(&record.manifest)?.ok_or_else(missing)?;
        let media_type =
            ImageManifest::from_reader(&*manifest).ok().and_then(|manifest| manifest.media_type().clone());
        let media_type = media_type.map_or_else(
            || "application/vnd.oci.image.manifest.v1+json".to_owned(),
            |media_type| media_type.to_string(),
        );
        let mut annotations = json!({"io.containerd.image.name": image.as_str()});
        if let Some(tag) = image.tag() {
            annotations["org.opencontainers.image.ref.name"] = tag.into();
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": media_type,
                "digest": record.manifest,
                "size": manifest.len(),
                "annotations": annotations,
            }],
        });
        let mut tar = Builder::new(stream);
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        add(&mut tar, "oci-layout", layout.len() as u64, &layout[..]).map_err(StoreError::Stream)?;
        let index = index.to_string();
        add(&mut tar, "index.json", index.len() as u64, index.as_bytes()).map_err(StoreError::Stream)?;
        for digest in record.all_blobs() {
            let path = self.blob_path(digest);
            let file = File::open(&path).on_disk("cannot read", &path)?;
            let size = file.metadata().on_disk("cannot read", &path)?.len();
            let name = format!("blobs/{}", digest.replacen(':', "/", 1));
            add(&mut tar, &name, size, file).map_err(StoreError::Stream)?;
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
