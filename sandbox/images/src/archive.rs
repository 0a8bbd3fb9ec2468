//! Imports archives of `docker save`, `podman save`, `skopeo copy` and our own export, for machines
//! without internet. Two forms exist: Docker's with `manifest.json`, and OCI's with `index.json`.
//! New versions of Docker write both, and the second is preferred: it has the registry's digests.

mod docker;
mod oci;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};

use porch_fn_image::Image;
use porch_fn_registry::{Hasher, Platform, sha256};

use crate::StoreError;
use crate::content::{Content, Hashed, Incoming};
use crate::document::{self, MAX_DOCUMENT};
use crate::error::OnDisk as _;
use crate::record::Record;
use crate::run_folder::RunFolder;
use crate::store::Store;
use crate::unpack::{Guard, decompressed};

/// Most files in an archive.
const MAX_FILES: usize = 20_000;

/// The files of an archive, by the names in it.
pub struct Archive {
    store: Store,
    folder: RunFolder,
    files: HashMap<String, Content>,
}

/// An image in an archive.
struct Found {
    /// The names that the archive gives it.
    names: Vec<String>,
    /// The digest of the index that has the manifest, if there is one.
    index: Option<String>,
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
        let limit = store.options().max_bytes;
        let guard = Guard::new(limit);
        let malformed = |error: io::Error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                StoreError::TooLarge { needs: (limit >> 20) + 1, limit: limit >> 20 }
            }
            _ => problem(error.to_string().escape_debug()),
        };
        let mut tar = tar::Archive::new(guard.watch(decompressed(stream).map_err(StoreError::Stream)?));
        let mut buffer = vec![0; 128 << 10];
        let mut entries = tar.entries().map_err(malformed)?;
        while let Some(entry) = entries.next() {
            let mut entry = entry.map_err(malformed)?;
            guard.expect_data();
            if archive.files.len() >= MAX_FILES {
                return Err(problem(format!("it has more than {MAX_FILES} files")));
            }
            let name = normal(&entry.path_bytes());
            if entry.header().entry_type().is_file() {
                let mut incoming = Incoming::create(&archive.folder, Hasher::sha256())?;
                loop {
                    let read = entry.read(&mut buffer).map_err(malformed)?;
                    if read == 0 {
                        break;
                    }
                    incoming.write(&buffer[..read])?;
                }
                archive.files.insert(name, incoming.finish(None)?);
            }
            io::copy(&mut entry, &mut io::sink()).map_err(malformed)?;
            guard.expect_headers();
        }
        Ok(archive)
    }

    /// Adds the archive's images for this platform to the store, each with the names that the
    /// archive gives it, or with the name `name`. Returns the names. Then removes other images, if
    /// all take more than `--image-max-size`.
    ///
    /// # Errors
    /// The archive is malformed, or has no name for an image and `name` is `None`.
    pub fn import(&self, platform: &Platform, name: Option<&Image>) -> Result<Vec<Image>, StoreError> {
        let found = if self.files.contains_key("index.json") { self.oci(platform)? } else { self.docker()? };
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
            self.keep(&images, found)?;
            imported.extend(images);
        }
        self.store.collect();
        Ok(imported)
    }

    fn keep(&self, images: &[Image], Found { index, manifest: bytes, .. }: Found) -> Result<(), StoreError> {
        let manifest = document::manifest(&bytes)?;
        let digest = sha256(&bytes);
        let record = Record::new(index.as_ref().unwrap_or(&digest), &digest);
        if let Some(image) = images.iter().find(|image| record.contradicts(image)) {
            return Err(StoreError::Pinned { name: image.to_string(), digest });
        }
        let config = self.by_digest(&manifest.config.digest)?;
        let layers = document::parse(&manifest, &read_document(&config)?)?.layers;
        let contents = layers.iter().map(|layer| self.by_digest(&layer.digest));
        let contents = contents.collect::<Result<Vec<_>, _>>()?;
        if layers.iter().zip(&contents).any(|(layer, content)| layer.size != content.size) {
            return Err(problem("a layer has another size than its manifest says"));
        }
        let lock = self.store.lock()?;
        let mut leases = self.store.lease_trees(&layers)?;
        drop(lock);
        leases.push(self.store.keep(&self.folder, &digest, &bytes, "manifest")?);
        for content in contents.iter().chain([&config]) {
            leases.push(self.store.admit(content)?);
        }
        for number in 0..layers.len() {
            leases.extend(self.store.unpack(&layers, number)?);
        }
        self.store.finish(images, &record, &layers)
    }

    /// The file that has this digest, whatever its name is.
    fn by_digest(&self, digest: &str) -> Result<Content, StoreError> {
        if let Some(content) = self.files.values().find(|file| file.digest == digest) {
            return Ok(content.clone());
        }
        let missing = || problem(format!("it does not have {digest:?}"));
        let name = format!("blobs/{}", digest.replacen(':', "/", 1));
        let content = self.files.get(&name).ok_or_else(missing)?;
        // All files were hashed with SHA-256.
        let hasher = Hasher::of(digest).ok_or_else(missing)?;
        let file = File::open(&content.path).on_disk("cannot read", &content.path)?;
        let found = Hashed::new(file, hasher).finish().on_disk("cannot read", &content.path)?;
        if found != digest {
            return Err(problem(format!("its file {name:?} does not have the digest in its name")));
        }
        Ok(Content { digest: found, ..content.clone() })
    }

    fn document(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.files.get(name).map(read_document).transpose()
    }
}

fn problem(reason: impl std::fmt::Display) -> StoreError {
    StoreError::document("archive", reason)
}

fn read_document(file: &Content) -> Result<Vec<u8>, StoreError> {
    if file.size > MAX_DOCUMENT {
        return Err(problem("one of its documents is larger than 8 MiB"));
    }
    std::fs::read(&file.path).on_disk("cannot read", &file.path)
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
