//! A stream whose digest is computed while it is read.

use std::io::{self, Read};

use porch_fn_registry::Hasher;

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

    /// The digest of all that was read.
    pub(crate) fn digest(self) -> String {
        self.hasher.digest()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
