//! Imports archives of `docker save`, `podman save`, `skopeo copy` and our own export, for machines
//! without internet. Exports OCI archives, which these programs read, too. Two forms exist: Docker's
//! with `manifest.json`, and OCI's with `index.json`. New versions of Docker write both, and the
//! second is preferred: it has the registry's digests.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

mod docker;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_registry::{Descriptor, Document, Hashed, ImageManifest, Platform, choose};
use serde_json::json;
use tar::{Builder, Header};

use crate::content::{document_in, name_of};
use crate::error::{OnDisk as _, StoreError};
use crate::pull::Intake;
use crate::run_folder::RunFolder;
use crate::store::{Record, Store};
use crate::unpack::{Guard, clean, decompressed};

/// Most files in an archive.
const MAX_FILES: usize = 20_000;
/// Most names of one image in an archive.
const MAX_NAMES: usize = 100;
/// The image's full name, by containerd and Docker.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The image's tag, or its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// What a manifest is that does not say it.
const MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The files of an archive. They have names by their digests.
struct Archive {
    folder: RunFolder,
    /// The digests of the files, by their names in the archive, which are only keys.
    digests: HashMap<PathBuf, String>,
}

// === impl Store ===

impl Store {
    /// Adds the images of an archive for this machine's platform to the store, each with the names
    /// that the archive gives it, or with the name `name`. Returns the names. Then removes other
    /// images, if all take more than `--image-max-size`.
    ///
    /// # Errors
    /// The stream is no archive of images, is larger than `--image-max-size`, or has no name for an
    /// image and `name` is `None`.
    pub async fn import(
        &self,
        stream: impl Read + Send + 'static,
        name: Option<&Image>,
    ) -> Result<Vec<Image>, StoreError> {
        let archive = self.blocking(move |store| Archive::read(store, stream)).await?;
        let Document::Index(entries) = Document::read(&archive.named("index.json")?)? else {
            return Err(problem("its index.json is no index"));
        };
        let mut images: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // An image with several names may have an entry for each.
        for entry in entries {
            images.entry(entry.digest.clone()).or_default().extend(name_in(&entry));
        }
        if images.is_empty() || images.values().any(|names| names.len() > MAX_NAMES) {
            return Err(problem(format!("it has no image, or one with more than {MAX_NAMES} names")));
        }
        if name.is_some() && images.len() > 1 {
            return Err(problem("it has several images, so --as cannot name them"));
        }
        let (folder, progress) = (&archive.folder, Mutex::default());
        let intake = Intake { store: self, folder, registry: None, watch: &|_| {}, progress };
        let mut imported = Vec::new();
        for (digest, names) in images {
            let names = match name {
                Some(name) => vec![name.clone()],
                None => names.iter().map(|name| full_name(name)).collect::<Result<_, _>>()?,
            };
            if names.is_empty() {
                return Err(problem("it has no name for an image: name it with --as"));
            }
            let manifest = match Document::read(&archive.document(&digest)?)? {
                Document::Index(nested) => choose(&nested, &Platform::default())?.to_owned(),
                Document::Manifest(_) => digest.clone(),
            };
            imported.extend_from_slice(&names);
            let taken = intake.take(names, Record::new(digest, manifest)).await;
            self.collect().await;
            taken?;
        }
        Ok(imported)
    }

    /// Writes the image to the stream, and verifies each blob. The blobs are those of the registry, so
    /// digests stay the same.
    ///
    /// # Errors
    /// [`StoreError::Missing`], if the image is not here, and [`StoreError::Damaged`].
    pub fn export(&self, image: &Image, stream: impl Write) -> Result<(), StoreError> {
        let stored = self.find(image)?.ok_or(StoreError::Missing)?;
        let digest = &stored.image.record.manifest;
        let bytes = self.blob(digest)?.ok_or(StoreError::Missing)?;
        let media_type = ImageManifest::read(&bytes)?.media_type;
        let media_type = if media_type.is_empty() { MEDIA_TYPE } else { &media_type };
        let mut annotations = json!({CONTAINERD_NAME: image.as_str()});
        if let Some(tag) = image.tag() {
            annotations[REF_NAME] = tag.into();
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
        let mut add = |name: &str, size: u64, data: &mut dyn Read| -> Result<(), StoreError> {
            let mut header = Header::new_gnu();
            header.set_size(size);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, data).map_err(StoreError::Other)
        };
        let layout = r#"{"imageLayoutVersion":"1.0.0"}"#;
        for (name, text) in [("oci-layout", layout), ("index.json", &index.to_string())] {
            add(name, text.len() as u64, &mut text.as_bytes())?;
        }
        for digest in stored.image.blobs() {
            let path = self.blob_path(digest);
            let file = File::open(&path).on_disk("cannot read", &path)?;
            let size = file.metadata().on_disk("cannot read", &path)?.len();
            let mut data = Hashed::new(file, digest);
            add(&format!("blobs/{}", digest.replacen(':', "/", 1)), size, &mut (&mut data).take(size))?;
            if data.finish().on_disk("cannot read", &path)? != *digest {
                return Err(StoreError::Damaged(path));
            }
        }
        tar.into_inner().and_then(|mut stream| stream.flush()).map_err(StoreError::Other)
    }
}

// === impl Archive ===

impl Archive {
    /// Reads an archive into a folder of the store.
    fn read(store: &Store, stream: impl Read) -> Result<Self, StoreError> {
        let mut archive = Self { folder: store.run_folder()?, digests: HashMap::new() };
        let guard = Guard::new(store.max_bytes);
        let limit = store.max_bytes >> 20;
        let tar = decompressed(stream).and_then(|tar| {
            guard.each_entry(tar, |entry| {
                if archive.digests.len() >= MAX_FILES {
                    return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
                }
                if entry.header().entry_type().is_file() {
                    archive.add(clean(&entry.path_bytes()).map_err(io::Error::other)?, entry)?;
                }
                Ok(())
            })
        });
        tar.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => StoreError::TooLarge { needs: limit + 1, limit },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Other(error),
            _ => problem(error.to_string().escape_debug()),
        })?;
        if !archive.digests.contains_key(Path::new("index.json")) {
            archive.convert()?;
        }
        Ok(archive)
    }

    /// Adds a file. Its name in the archive chooses no more than the algorithm of its digest.
    fn add(&mut self, name: PathBuf, content: impl Read) -> io::Result<()> {
        let claimed = name.to_string_lossy().replacen("blobs/", "", 1).replacen('/', ":", 1);
        let mut content = Hashed::new(content, &claimed);
        let path = self.folder.path().join("incoming");
        io::copy(&mut content, &mut File::create(&path)?)?;
        let digest = content.finish()?;
        fs::rename(path, self.folder.path().join(name_of(&digest)))?;
        self.digests.insert(name, digest);
        Ok(())
    }

    /// A document by its name in the archive.
    fn named(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let missing = || problem("it has neither index.json nor manifest.json: save it with `docker save`");
        self.document(self.digests.get(Path::new(name)).ok_or_else(missing)?)
    }

    fn document(&self, digest: &str) -> Result<Vec<u8>, StoreError> {
        let document = document_in(self.folder.path(), digest)?;
        document.ok_or_else(|| problem(format!("it does not have {digest:?}")))
    }
}

/// A reference without a registry or a path is only a tag.
fn name_in(entry: &Descriptor) -> Option<String> {
    let annotation = |name: &str| entry.annotations[name].as_str().map(str::to_owned);
    let other = || annotation(REF_NAME).filter(|name| name.contains(['/', ':']));
    annotation(CONTAINERD_NAME).or_else(other)
}

fn problem(reason: impl Display) -> StoreError {
    StoreError::Archive(reason.to_string())
}

/// The full name by Docker's rules: `cat:v1` is `docker.io/library/cat:v1`.
fn full_name(name: &str) -> Result<Image, StoreError> {
    Image::parse(name, "").map_err(|error| problem(format!("the name {name:?} of an image: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_like_dockers() {
        for (name, full) in [
            ("cat:v1", "docker.io/library/cat:v1"),
            ("me/cat:v1", "docker.io/me/cat:v1"),
            ("localhost/cat:v1", "localhost/cat:v1"),
            ("ghcr.io/me/cat:v1", "ghcr.io/me/cat:v1"),
            ("127.0.0.1:5000/cat:v1", "127.0.0.1:5000/cat:v1"),
        ] {
            assert_eq!(full_name(name).unwrap().as_str(), full);
        }
        assert!(full_name("A b").is_err());
    }
}
