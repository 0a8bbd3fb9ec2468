//! Content by its digest: verified while it is copied.

use std::io::{self, Read};

use porch_fn_image::is_digest;
use ring::digest::{Context, SHA256, SHA512};

/// A stream that computes the digest of what was read from it.
pub(crate) struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

/// Computes a digest of one algorithm.
pub(crate) struct Hasher {
    context: Context,
    algorithm: &'static str,
}

// === impl Hasher ===

impl Hasher {
    /// For the algorithm of this digest. `None`: it is not a digest.
    pub(crate) fn of(digest: &str) -> Option<Self> {
        is_digest(digest).then(|| match digest.split_once(':') {
            Some(("sha512", _)) => Self { context: Context::new(&SHA512), algorithm: "sha512" },
            _ => Self { context: Context::new(&SHA256), algorithm: "sha256" },
        })
    }

    pub(crate) fn sha256() -> Self {
        Self { context: Context::new(&SHA256), algorithm: "sha256" }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    pub(crate) fn digest(self) -> String {
        let text = format!("{}:", self.algorithm);
        self.context.finish().as_ref().iter().fold(text, |text, byte| text + &format!("{byte:02x}"))
    }
}

/// The SHA-256 digest of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::sha256();
    hasher.update(bytes);
    hasher.digest()
}

/// Whether the bytes have this digest.
pub(crate) fn has_digest(bytes: &[u8], digest: &str) -> bool {
    Hasher::of(digest).is_some_and(|mut hasher| {
        hasher.update(bytes);
        hasher.digest() == digest
    })
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
