//! Content on its way into the store. It is hashed while it is written, and gets the hash as its
//! name: no other name is trusted.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::PathBuf;

use porch_fn_registry::Hasher;

use crate::StoreError;
use crate::error::OnDisk as _;
use crate::run_folder::RunFolder;
use crate::store::{Store, lease};

/// Computes the digest of what was read from the stream.
pub(crate) struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

/// A file that is being written.
pub(crate) struct Incoming {
    content: Content,
    file: File,
    hasher: Hasher,
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
    /// A new file.
    pub(crate) fn create(folder: &RunFolder, hasher: Hasher) -> Result<Self, StoreError> {
        let named = tempfile::NamedTempFile::new_in(folder.path());
        let (file, path) = named.and_then(|file| Ok(file.keep()?)).on_disk("cannot write", folder.path())?;
        Ok(Self { content: Content { path, digest: String::new(), size: 0 }, file, hasher })
    }

    pub(crate) fn size(&self) -> u64 {
        self.content.size
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).on_disk("cannot write", &self.content.path)?;
        self.hasher.update(bytes);
        self.content.size += bytes.len() as u64;
        Ok(())
    }

    /// Fails if the content does not have the digest.
    pub(crate) fn finish(self, expected: Option<(&str, &'static str)>) -> Result<Content, StoreError> {
        let digest = self.hasher.digest();
        match expected {
            Some((expected, what)) if digest != expected => Err(StoreError::Digest { what }),
            _ => Ok(Content { digest, ..self.content }),
        }
    }
}

// === impl Store ===

impl Store {
    /// Takes content into the store, in place of what has its name. Returns a lease.
    pub(crate) fn admit(&self, content: &Content) -> Result<File, StoreError> {
        let (to, link) = (self.blob_path(&content.digest), content.path.with_extension("named"));
        let _lock = self.lock()?;
        // Images of one archive share layers, so the content may be needed again.
        let _ = fs::remove_file(&link);
        let named = fs::hard_link(&content.path, &link).and_then(|()| fs::rename(&link, &to));
        named.on_disk("cannot write", &to)?;
        lease(&to)?.ok_or(StoreError::Damaged(to))
    }

    /// Takes a document into the store. Returns a lease.
    pub(crate) fn keep(
        &self,
        folder: &RunFolder,
        digest: &str,
        bytes: &[u8],
        what: &'static str,
    ) -> Result<File, StoreError> {
        let hasher = Hasher::of(digest).ok_or(StoreError::Digest { what })?;
        let mut incoming = Incoming::create(folder, hasher)?;
        incoming.write(bytes)?;
        self.admit(&incoming.finish(Some((digest, what)))?)
    }
}
