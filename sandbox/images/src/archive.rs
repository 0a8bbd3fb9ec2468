//! Imports archives of `docker save`, `podman save`, `skopeo copy` and our own export, for machines
//! without internet. Two forms exist: Docker's with `manifest.json`, and OCI's with `index.json`.
//! New versions of Docker write both, and the second is preferred: it has the registry's digests.

mod docker;
mod oci;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::SystemTime;

use porch_fn_image::Image;
use porch_fn_registry::{Hasher, Platform, has_digest, sha256};
use tempfile::TempDir;

use crate::StoreError;
use crate::content::Hashed;
use crate::error::OnDisk as _;
use crate::pull::{parse_layers, parse_manifest};
use crate::record::Record;
use crate::store::{Lock, Store};
use crate::unpack::decompressed;

/// Most files in an archive.
const MAX_FILES: usize = 20_000;
/// Largest document in an archive, in bytes.
const MAX_DOCUMENT: u64 = 8 << 20;

/// The files of an archive, by the names in it.
pub struct Archive {
    store: Store,
    folder: TempDir,
    files: HashMap<String, FileOf>,
    _lock: Lock,
}

struct FileOf {
    path: PathBuf,
    digest: String,
    size: u64,
}

/// An image in an archive.
struct Found {
    /// The names that the archive gives it.
    names: Vec<String>,
    manifest: Vec<u8>,
}

// === impl Archive ===

impl Archive {
    /// Reads an archive into the store's folder.
    ///
    /// # Errors
    /// It is not an archive of images, or it is larger than `--image-max-size`.
    pub fn read(store: &Store, stream: impl Read) -> Result<Self, StoreError> {
        let lock = store.lock()?;
        let folder = store.workspace()?;
        let mut archive = Self { store: store.clone(), folder, files: HashMap::new(), _lock: lock };
        let limit = store.options().max_bytes;
        let stream = decompressed(stream).map_err(StoreError::Stream)?;
        let mut tar = tar::Archive::new(stream);
        let malformed = |error: io::Error| StoreError::document("archive", error);
        let (mut links, mut total) = (HashMap::new(), 0_u64);
        for entry in tar.entries().map_err(malformed)? {
            let mut entry = entry.map_err(malformed)?;
            let name = normal(&entry.path_bytes());
            let kind = entry.header().entry_type();
            if archive.files.len() + links.len() >= MAX_FILES {
                return Err(StoreError::document("archive", format!("it has more than {MAX_FILES} files")));
            }
            if let Some(target) = entry.link_name_bytes().filter(|_| kind.is_symlink() || kind.is_hard_link())
            {
                // Old versions of Docker link equal layers: `ID/layer.tar -> ../OTHER/layer.tar`.
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                let target = if kind.is_symlink() { resolve(parent, &target) } else { normal(&target) };
                links.insert(name, target);
            } else if kind.is_file() {
                total = total.saturating_add(entry.size());
                if total > limit {
                    return Err(StoreError::TooLarge { needs: total >> 20, limit: limit >> 20 });
                }
                let path = archive.folder.path().join(archive.files.len().to_string());
                let mut file = File::create_new(&path).on_disk("cannot write", &path)?;
                let mut hashed = Hashed::new(&mut entry, Hasher::sha256());
                let size = io::copy(&mut hashed, &mut file).on_disk("cannot write", &path)?;
                archive.files.insert(name, FileOf { path, digest: hashed.digest(), size });
            }
        }
        for (name, target) in links {
            if let Some(FileOf { path, digest, size }) = archive.files.get(&target) {
                let file = FileOf { path: path.clone(), digest: digest.clone(), size: *size };
                archive.files.insert(name, file);
            }
        }
        Ok(archive)
    }

    /// Adds the archive's images for this platform to the store, each with the names that the
    /// archive gives it, or with the name `name`. Returns the names.
    ///
    /// # Errors
    /// The archive is malformed, or has no name for an image and `name` is `None`.
    pub fn import(&self, platform: &Platform, name: Option<&Image>) -> Result<Vec<Image>, StoreError> {
        let found = if self.files.contains_key("index.json") { self.oci(platform)? } else { self.docker()? };
        if name.is_some() && found.len() > 1 {
            return Err(StoreError::document("archive", "it has several images, so --as cannot name them"));
        }
        let mut imported = Vec::new();
        for Found { names, manifest } in found {
            let images = match name {
                Some(name) => vec![name.clone()],
                None => names.iter().map(|name| full_name(name)).collect::<Result<_, _>>()?,
            };
            if images.is_empty() {
                return Err(StoreError::document(
                    "archive",
                    "it has no name for an image: name it with --as",
                ));
            }
            self.keep(&images, &manifest)?;
            imported.extend(images);
        }
        Ok(imported)
    }

    fn keep(&self, images: &[Image], manifest_bytes: &[u8]) -> Result<(), StoreError> {
        let manifest = parse_manifest(manifest_bytes)?;
        let digest = sha256(manifest_bytes);
        let config_digest = manifest.config().digest().to_string();
        let config = self.document_by_digest(&config_digest, "image configuration")?;
        let (run, blobs, layers) = parse_layers(&manifest, &config)?;
        self.store.keep_blob(&digest, manifest_bytes)?;
        self.store.keep_blob(&config_digest, &config)?;
        for (blob, layer) in blobs.iter().zip(&layers) {
            let to = self.store.blob_path(blob);
            if !to.exists() {
                let file = self.by_digest(blob).ok_or_else(|| missing(blob))?;
                // Images of one archive share layers, and a name may be used twice.
                std::fs::hard_link(&file.path, &to).on_disk("cannot write", to)?;
            }
            self.store.unpack_layer(blob, layer)?;
        }
        for image in images {
            let record = Record {
                reference: image.as_str().to_owned(),
                resolved: digest.clone(),
                manifest: digest.clone(),
                config: config_digest.clone(),
                blobs: blobs.clone(),
                layers: layers.clone(),
                run: run.clone(),
                pulled: SystemTime::now(),
            };
            self.store.save(&self.store.record_path(image), &record)?;
        }
        Ok(())
    }

    fn by_digest(&self, digest: &str) -> Option<&FileOf> {
        let at = self.files.get(&format!("blobs/{}", digest.replacen(':', "/", 1)));
        at.or_else(|| self.files.values().find(|file| file.digest == digest))
    }

    fn document(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.files.get(name).map(read_document).transpose()
    }

    fn document_by_digest(&self, digest: &str, what: &'static str) -> Result<Vec<u8>, StoreError> {
        let file = self.by_digest(digest).ok_or_else(|| missing(digest))?;
        let bytes = read_document(file)?;
        if has_digest(&bytes, digest) { Ok(bytes) } else { Err(StoreError::Digest { what }) }
    }
}

fn read_document(file: &FileOf) -> Result<Vec<u8>, StoreError> {
    if file.size > MAX_DOCUMENT {
        return Err(StoreError::document("archive", "one of its documents is larger than 8 MiB"));
    }
    std::fs::read(&file.path).on_disk("cannot read", &file.path)
}

fn missing(digest: &str) -> StoreError {
    StoreError::document("archive", format!("it does not have {digest}"))
}

/// A name in the archive, without `./` and a leading slash.
fn normal(name: &[u8]) -> String {
    resolve("", name)
}

/// A path relative to a folder of the archive. It is only a key, so it can lead nowhere.
fn resolve(folder: &str, path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
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
    let problem = |error| StoreError::document("archive", format!("the name {name:?} of an image: {error}"));
    Image::parse(&name, "").map_err(problem)
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
    fn links_resolve_in_the_archive() {
        assert_eq!(resolve("a", b"../b/layer.tar"), "b/layer.tar");
        assert_eq!(resolve("a", b"../../../etc/passwd"), "etc/passwd");
        assert_eq!(normal(b"./manifest.json"), "manifest.json");
    }
}
