//! Content on its way into the store. It is hashed, and gets the hash as its name: no other name is
//! trusted.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use porch_fn_registry::Hasher;

use crate::error::{OnDisk as _, StoreError};
use crate::run_folder::RunFolder;
use crate::store::{Store, lease};
use crate::unpack::BUFFER;

/// Computes the digest of what was read from the stream.
pub(crate) struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

// === impl Hashed ===

impl<R: Read> Hashed<R> {
    pub(crate) fn new(inner: R, hasher: Hasher) -> Self {
        Self { inner, hasher }
    }

    /// The digest of the whole stream.
    pub(crate) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hasher.digest())
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

/// Whether a file's content has this digest.
pub(crate) fn is_intact(file: &Path, digest: &str) -> Result<bool, StoreError> {
    let Some(hasher) = Hasher::of(digest) else { return Ok(false) };
    let buffered = |file| BufReader::with_capacity(BUFFER, file);
    let found = File::open(file).and_then(|file| Hashed::new(buffered(file), hasher).finish());
    Ok(found.on_disk("cannot read", file)? == digest)
}

// === impl Store ===

impl Store {
    /// Takes a file below `tmp/` into the store, in place of what has its name. It stays where it
    /// is, because images of one archive share layers. Returns a lease.
    pub(crate) fn admit(&self, file: &Path, digest: &str, what: &'static str) -> Result<File, StoreError> {
        if !is_intact(file, digest)? {
            return Err(StoreError::Digest { what });
        }
        let (to, link) = (self.blob_path(digest), file.with_extension("link"));
        let _lock = self.lock()?;
        let _ = fs::remove_file(&link);
        let named = fs::hard_link(file, &link).and_then(|()| fs::rename(&link, &to));
        named.on_disk("cannot write", &to)?;
        lease(&to)?.ok_or(StoreError::Damaged(to))
    }

    /// Takes a document into the store. Returns a lease.
    pub(crate) fn keep(&self, folder: &RunFolder, digest: &str, bytes: &[u8]) -> Result<File, StoreError> {
        let file = folder.path().join("document");
        // The last document has this name and is in the store: it is not written to.
        let _ = fs::remove_file(&file);
        fs::write(&file, bytes).on_disk("cannot write", &file)?;
        self.admit(&file, digest, "document")
    }
}
