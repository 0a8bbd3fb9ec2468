//! Digests of content, `algorithm:hex`. No I/O of its own.

use std::io::{self, Read};

use porch_fn_image::is_digest;
use ring::digest::{Context, SHA256, SHA512};

use crate::RegistryError;

/// Returns the text if it is a digest of a supported algorithm. Only such a text may become part of
/// a URL.
pub(crate) fn known<'a>(text: &'a str, what: &'static str) -> Result<&'a str, RegistryError> {
    let problem = "its digest is neither sha256 with 64 digits nor sha512 with 128";
    if is_digest(text) { Ok(text) } else { Err(RegistryError::malformed(what, problem)) }
}

/// A stream that computes the digest of what is read from it.
pub struct Hashed<R> {
    inner: R,
    context: Context,
}

// === impl Hashed ===

impl<R: Read> Hashed<R> {
    /// Computes a digest that can be compared with this one. If this is none of a supported
    /// algorithm, no digest equals it.
    pub fn new(inner: R, digest: &str) -> Self {
        let algorithm = if digest.starts_with("sha512:") { &SHA512 } else { &SHA256 };
        Self { inner, context: Context::new(algorithm) }
    }

    /// Reads the rest of the stream. Returns the digest of all of it.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.digest())
    }

    fn digest(self) -> String {
        let name = if *self.context.algorithm() == SHA512 { "sha512:" } else { "sha256:" };
        let digest = self.context.finish();
        digest.as_ref().iter().fold(name.to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.context.update(&buffer[..read]);
        Ok(read)
    }
}

/// The digest of content, by the algorithm of another digest.
fn digest_like(digest: &str, bytes: &[u8]) -> String {
    let mut hashed = Hashed::new(io::empty(), digest);
    hashed.context.update(bytes);
    hashed.digest()
}

/// The SHA-256 digest of content. It is used if the registry announces no digest.
pub fn sha256(bytes: &[u8]) -> String {
    digest_like("sha256:", bytes)
}

/// Whether content has this digest.
pub fn has_digest(bytes: &[u8], digest: &str) -> bool {
    digest_like(digest, bytes) == digest
}

/// Fails if the content does not have the expected digest.
pub(crate) fn check(bytes: &[u8], expected: &str, what: &'static str) -> Result<(), RegistryError> {
    if has_digest(bytes, known(expected, what)?) {
        Ok(())
    } else {
        Err(RegistryError::malformed(what, "its content does not have its digest"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of "abc", by FIPS 180-4.
    const SHORT: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const LONG: &str = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                        2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";

    #[test]
    fn only_content_with_the_digest_has_it() {
        for digest in [format!("sha256:{SHORT}"), format!("sha512:{LONG}")] {
            assert!(has_digest(b"abc", &digest) && !has_digest(b"abd", &digest));
            let mut hashed = Hashed::new(&b"abc"[..], &digest);
            hashed.read_exact(&mut [0]).unwrap();
            assert_eq!(hashed.finish().unwrap(), digest);
        }
        for none in [SHORT, &format!("sha512:{SHORT}"), &format!("md5:{SHORT}"), "sha256:", ""] {
            assert!(!has_digest(b"abc", none), "{none}");
        }
    }
}
