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
use crate::error::OnDisk as _;
use crate::store::{Store, lease};
use crate::{StoreError, StoreError::Damaged};

// === impl Store ===

impl Store {
    /// Writes the image to the stream, and verifies each blob.
    ///
    /// # Errors
    /// [`StoreError::Missing`], if the image is not here, and [`StoreError::Damaged`].
    pub fn export(&self, image: &Image, stream: impl Write) -> Result<(), StoreError> {
        let missing = || StoreError::Missing(self.folder().to_owned());
        let (digest, blobs) = self.open_blobs(image)?.ok_or_else(missing)?;
        let manifest = self.blob(&digest)?.ok_or_else(missing)?;
        let media_type = match document::manifest(&manifest)?.media_type {
            none if none.is_empty() => "application/vnd.oci.image.manifest.v1+json".to_owned(),
            media_type => media_type,
        };
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
                "size": manifest.len(),
                "annotations": annotations,
            }],
        });
        let mut tar = Builder::new(stream);
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        add(&mut tar, "oci-layout", layout.len() as u64, &layout[..]).map_err(StoreError::Stream)?;
        let index = index.to_string();
        add(&mut tar, "index.json", index.len() as u64, index.as_bytes()).map_err(StoreError::Stream)?;
        for (digest, file) in blobs {
            let path = self.blob_path(&digest);
            let size = file.metadata().on_disk("cannot read", &path)?.len();
            let name = format!("blobs/{}", digest.replacen(':', "/", 1));
            let Some(hasher) = Hasher::of(&digest) else { return Err(Damaged(path)) };
            let mut data = Hashed::new(file, hasher);
            add(&mut tar, &name, size, (&mut data).take(size)).map_err(StoreError::Stream)?;
            if data.finish().on_disk("cannot read", &path)? != digest {
                return Err(Damaged(path));
            }
        }
        tar.into_inner().and_then(|mut stream| stream.flush()).map_err(StoreError::Stream)
    }

    /// Opens all blobs of an image, and keeps them. The first one is the manifest.
    fn open_blobs(&self, image: &Image) -> Result<Option<(String, Vec<(String, File)>)>, StoreError> {
        let _lock = self.lock()?;
        let Some((record, parsed)) = self.load(image)? else { return Ok(None) };
        let layers = parsed.layers.iter().map(|layer| &layer.digest);
        let digests = [&record.manifest, &parsed.config].into_iter().chain(layers);
        let open = |digest: &String| {
            let path = self.blob_path(digest);
            Ok((digest.clone(), lease(&path)?.ok_or(Damaged(path))?))
        };
        let blobs = digests.map(open).collect::<Result<_, StoreError>>()?;
        Ok(Some((record.manifest, blobs)))
    }
}

fn add(tar: &mut Builder<impl Write>, name: &str, size: u64, data: impl io::Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, data)
}
