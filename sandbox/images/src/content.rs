//! Content on its way into the store. It is hashed while it is written, and gets the hash as its
//! name: no other name is trusted.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use porch_fn_registry::Hasher;

use crate::StoreError;
use crate::error::OnDisk as _;
use crate::store::{Store, lease};

/// Computes the digest of what was read from the stream.
pub(crate) struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

/// A file that is being written.
pub(crate) struct Incoming {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    size: u64,
}

/// A file below `tmp/`, and its digest.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) path: PathBuf,
    pub(crate) digest: String,
    pub(crate) size: u64,
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

// === impl Incoming ===

impl Incoming {
    /// A new file below `tmp/`.
    pub(crate) fn create(path: PathBuf, hasher: Hasher) -> Result<Self, StoreError> {
        let file = File::create_new(&path).on_disk("cannot write", &path)?;
        Ok(Self { path, file, hasher, size: 0 })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).on_disk("cannot write", &self.path)?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn finish(self) -> Content {
        Content { path: self.path, digest: self.hasher.digest(), size: self.size }
    }
}

// === impl Store ===

impl Store {
    /// Takes content into the store, in place of what has its name. Returns a lease.
    pub(crate) fn admit(&self, content: &Content) -> Result<File, StoreError> {
        let to = self.blob_path(&content.digest);
        // Images of one archive share layers, so the content may be needed again.
        let link = content.path.with_extension("named");
        let _ = fs::remove_file(&link);
        let _lock = self.lock()?;
        fs::hard_link(&content.path, &link)
            .and_then(|()| fs::rename(&link, &to))
            .on_disk("cannot write", &to)?;
        lease(&to)?.ok_or(StoreError::Damaged(to))
    }
}
