//! Imports archives of `docker save`, `podman save`, `skopeo copy` and our own export, for machines
//! without internet. Two forms exist: Docker's with `manifest.json`, and OCI's with `index.json`.
//! New versions of Docker write both, and the second is preferred: it has the registry's digests.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

mod docker;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};
use std::path::PathBuf;

use porch_fn_image::Image;
use porch_fn_registry::{Platform, has_digest, sha256};

use crate::document::{self, Descriptor};
use crate::error::StoreError;
use crate::run_folder::RunFolder;
use crate::store::{Record, Store, read};
use crate::unpack::{BUFFER, Guard, decompressed};

/// Most files in an archive.
const MAX_FILES: usize = 20_000;
/// The image's full name, by containerd and Docker.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The image's tag, or its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The files of an archive, by the names in it.
pub struct Archive {
    store: Store,
    folder: RunFolder,
    files: HashMap<String, PathBuf>,
}

/// An image in an archive.
struct Found {
    /// The names that the archive gives it.
    names: Vec<String>,
    /// The digest of its manifest, or of the index that has it.
    digest: String,
    manifest: Vec<u8>,
}

// === impl Archive ===

impl Archive {
    /// Reads an archive into the store's folder.
    ///
    /// # Errors
    /// It is not an archive of images, or it is larger than `--image-max-size`.
    pub fn read(store: &Store, stream: impl Read) -> Result<Self, StoreError> {
        let mut archive = Self { store: store.clone(), folder: store.run_folder()?, files: HashMap::new() };
        archive.read_all(stream).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                let limit = store.options().max_bytes >> 20;
                StoreError::TooLarge { needs: limit + 1, limit }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Stream(error),
            _ => problem(error.to_string().escape_debug()),
        })?;
        if !archive.files.contains_key("index.json") {
            archive.convert()?;
        }
        Ok(archive)
    }

    fn read_all(&mut self, stream: impl Read) -> io::Result<()> {
        let guard = Guard::new(self.store.options().max_bytes);
        let mut tar = tar::Archive::new(guard.watch(decompressed(stream)?));
        for entry in tar.entries()? {
            let mut entry = entry?;
            guard.expect_data();
            if self.files.len() >= MAX_FILES {
                return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
            }
            if entry.header().entry_type().is_file() {
                let path = self.folder.path().join(format!("file-{}", self.files.len()));
                let mut file = BufWriter::with_capacity(BUFFER, File::create_new(&path)?);
                io::copy(&mut entry, &mut file)?;
                file.flush()?;
                self.files.insert(normal(&entry.path_bytes()), path);
            }
            io::copy(&mut entry, &mut io::sink())?;
            guard.expect_headers();
        }
        Ok(())
    }

    /// Adds the archive's images for this platform to the store, each with the names that the
    /// archive gives it, or with the name `name`. Returns the names. Then removes other images, if
    /// all take more than `--image-max-size`.
    ///
    /// # Errors
    /// The archive is malformed, or has no name for an image and `name` is `None`.
    pub fn import(&self, platform: &Platform, name: Option<&Image>) -> Result<Vec<Image>, StoreError> {
        let found = self.images(platform)?;
        if name.is_some() && found.len() > 1 {
            return Err(problem("it has several images, so --as cannot name them"));
        }
        let mut imported = Vec::new();
        for found in found {
            let images = match name {
                Some(name) => vec![name.clone()],
                None => found.names.iter().map(|name| full_name(name)).collect::<Result<_, _>>()?,
            };
            if images.is_empty() {
                return Err(problem("it has no name for an image: name it with --as"));
            }
            self.keep(&images, &found)?;
            imported.extend(images);
        }
        self.store.collect();
        Ok(imported)
    }

    fn images(&self, platform: &Platform) -> Result<Vec<Found>, StoreError> {
        let layout = document::read(&self.text("index.json")?)?;
        let mut all: Vec<Found> = Vec::new();
        for entry in layout.manifests.unwrap_or_default() {
            let names = names(&entry);
            let digest = entry.digest;
            // An image with several names may have an entry for each.
            if let Some(found) = all.iter_mut().find(|found| found.digest == digest) {
                found.names.extend(names);
                continue;
            }
            let mut manifest = self.document(&digest)?;
            if let Some(nested) = document::read(&manifest)?.manifests {
                manifest = self.document(&document::choose(&nested, platform)?)?;
            }
            all.push(Found { names, digest, manifest });
        }
        Ok(all)
    }

    fn keep(&self, images: &[Image], found: &Found) -> Result<(), StoreError> {
        let manifest = document::manifest(&found.manifest)?;
        let record = Record::new(&found.digest, &sha256(&found.manifest));
        images.iter().try_for_each(|image| record.check(image))?;
        let config = self.document(&manifest.config.digest)?;
        let layers = document::parse(&manifest, &config)?.layers;
        let lock = self.store.lock()?;
        let mut leases = self.store.lease_trees(&layers)?;
        drop(lock);
        leases.push(self.store.keep(&self.folder, &record.manifest, &found.manifest)?);
        leases.push(self.store.keep(&self.folder, &manifest.config.digest, &config)?);
        for layer in &layers {
            let file = self.file_of(&layer.digest)?;
            if file.metadata().is_ok_and(|file| file.len() != layer.size) {
                return Err(problem("a layer has another size than its manifest says"));
            }
            leases.push(self.store.admit(file, &layer.digest, "layer")?);
        }
        for number in 0..layers.len() {
            leases.extend(self.store.unpack(&layers, number)?);
        }
        self.store.finish(images, &record, &layers)
    }

    /// The file whose name is this digest. Its content may be another.
    fn file_of(&self, digest: &str) -> Result<&PathBuf, StoreError> {
        self.files.get(&name_of(digest)).ok_or_else(|| problem(format!("it does not have {digest:?}")))
    }

    /// A document with this digest.
    fn document(&self, digest: &str) -> Result<Vec<u8>, StoreError> {
        let bytes = read(self.file_of(digest)?)?.filter(|bytes| has_digest(bytes, digest));
        bytes.ok_or(StoreError::Digest { what: "document" })
    }

    fn text(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let bytes = self.files.get(name).and_then(|path| read(path).transpose());
        bytes.unwrap_or_else(|| {
            Err(problem("it has neither index.json nor manifest.json: save it with `docker save`"))
        })
    }
}

/// A reference without a registry or a path is only a tag.
fn names(entry: &Descriptor) -> Vec<String> {
    let annotation = |name: &str| entry.annotations.get(name).cloned();
    let other = || annotation(REF_NAME).filter(|name| name.contains(['/', ':']));
    annotation(CONTAINERD_NAME).or_else(other).into_iter().collect()
}

fn problem(reason: impl std::fmt::Display) -> StoreError {
    StoreError::document("archive", reason)
}

/// The name of a file by its digest.
fn name_of(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// A name in the archive, without `.`, `..` and a leading slash. It is only a key.
fn normal(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The full name by Docker's rules: `cat:v1` is `docker.io/library/cat:v1`.
fn full_name(name: &str) -> Result<Image, StoreError> {
    let first = name.split('/').next().unwrap_or_default();
    let has_registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let name = match (has_registry, name.contains('/')) {
        (true, _) => name.to_owned(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    };
    Image::parse(&name, "").map_err(|error| problem(format!("the name {name:?} of an image: {error}")))
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

    #[test]
    fn names_in_the_archive_are_only_keys() {
        for (name, key) in [("./manifest.json", "manifest.json"), ("a/../../../etc/passwd", "etc/passwd")] {
            assert_eq!(normal(name.as_bytes()), key);
        }
    }
}
