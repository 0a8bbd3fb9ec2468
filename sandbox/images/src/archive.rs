//! Imports archives of `docker save`, `podman save`, `skopeo copy` and our own export, for machines
//! without internet. Two forms exist: Docker's with `manifest.json`, and OCI's with `index.json`.
//! New versions of Docker write both, and the second is preferred: it has the registry's digests.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

mod docker;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use porch_fn_image::Image;
use porch_fn_registry::Hasher;

use crate::content::{Hashed, document_in, name_of};
use crate::document::{self, Descriptor};
use crate::error::StoreError;
use crate::pull::Intake;
use crate::run_folder::RunFolder;
use crate::store::Store;
use crate::unpack::{Guard, clean, decompressed};

/// Most files in an archive.
const MAX_FILES: usize = 20_000;
/// The image's full name, by containerd and Docker.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The image's tag, or its name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

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
        let mut images: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // An image with several names may have an entry for each.
        for entry in document::read(&archive.named("index.json")?)?.manifests.unwrap_or_default() {
            images.entry(entry.digest.clone()).or_default().extend(name_in(&entry));
        }
        if name.is_some() && images.len() > 1 {
            return Err(problem("it has several images, so --as cannot name them"));
        }
        let intake = Intake { store: self, folder: &archive.folder, registry: None, progress: &() };
        let mut imported = Vec::new();
        for (digest, names) in images {
            let names = match name {
                Some(name) => vec![name.clone()],
                None => names.iter().map(|name| full_name(name)).collect::<Result<_, _>>()?,
            };
            if names.is_empty() {
                return Err(problem("it has no name for an image: name it with --as"));
            }
            let manifest = match document::read(&archive.document(&digest)?)?.manifests {
                Some(nested) => document::choose(&nested)?,
                None => digest.clone(),
            };
            intake.take(&names, &digest, &manifest).await?;
            imported.extend(names);
        }
        self.collect().await;
        Ok(imported)
    }
}

// === impl Archive ===

impl Archive {
    /// Reads an archive into a folder of the store.
    fn read(store: &Store, stream: impl Read) -> Result<Self, StoreError> {
        let mut archive = Self { folder: store.run_folder()?, digests: HashMap::new() };
        let limit = store.options().max_bytes;
        archive.read_all(stream, limit).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                StoreError::TooLarge { needs: (limit >> 20) + 1, limit: limit >> 20 }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Stream(error),
            _ => problem(error.to_string().escape_debug()),
        })?;
        if !archive.digests.contains_key(Path::new("index.json")) {
            archive.convert()?;
        }
        Ok(archive)
    }

    fn read_all(&mut self, stream: impl Read, limit: u64) -> io::Result<()> {
        let guard = Guard::new(limit);
        let mut tar = tar::Archive::new(guard.watch(decompressed(stream)?));
        for entry in tar.entries()? {
            let mut entry = entry?;
            guard.expect_data();
            if self.digests.len() >= MAX_FILES {
                return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
            }
            if entry.header().entry_type().is_file() {
                self.add(clean(&entry.path_bytes()).map_err(io::Error::other)?, &mut entry)?;
            }
            io::copy(&mut entry, &mut io::sink())?;
            guard.expect_headers();
        }
        Ok(())
    }

    /// Adds a file. Its name in the archive chooses no more than the algorithm of its digest.
    fn add(&mut self, name: PathBuf, content: impl Read) -> io::Result<()> {
        let claimed = name.to_string_lossy().replacen("blobs/", "", 1).replacen('/', ":", 1);
        let mut content = Hashed::new(content, Hasher::of(&claimed).unwrap_or_else(Hasher::sha256));
        let path = self.folder.path().join("incoming");
        io::copy(&mut content, &mut File::create(&path)?)?;
        let digest = content.finish()?;
        fs::rename(path, self.folder.path().join(name_of(&digest)))?;
        self.digests.insert(name, digest);
        Ok(())
    }

    /// A document by its name in the archive.
    fn named(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let digest = self.digests.get(Path::new(name)).ok_or_else(|| {
            problem("it has neither index.json nor manifest.json: save it with `docker save`")
        })?;
        self.document(digest)
    }

    fn document(&self, digest: &str) -> Result<Vec<u8>, StoreError> {
        let document = document_in(self.folder.path(), digest)?;
        document.ok_or_else(|| problem(format!("it does not have {digest:?}")))
    }
}

/// A reference without a registry or a path is only a tag.
fn name_in(entry: &Descriptor) -> Option<String> {
    let annotations = entry.annotations.as_ref()?;
    let other = || annotations.get(REF_NAME).filter(|name| name.contains(['/', ':']));
    annotations.get(CONTAINERD_NAME).or_else(other).cloned()
}

fn problem(reason: impl std::fmt::Display) -> StoreError {
    StoreError::document("archive", reason)
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
}
