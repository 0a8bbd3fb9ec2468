//! Digests of content, `algorithm:hex`. No I/O.

use porch_fn_image::is_digest;
use ring::digest::{Context, SHA256, SHA512};

use crate::RegistryError;

/// Returns the text if it is a digest of a supported algorithm. Only such a text may become part of
/// a URL.
pub(crate) fn known<'a>(text: &'a str, what: &'static str) -> Result<&'a str, RegistryError> {
    let problem = "its digest is neither sha256 with 64 digits nor sha512 with 128";
    if is_digest(text) { Ok(text) } else { Err(RegistryError::malformed(what, problem)) }
}

/// Computes a digest while content arrives.
pub struct Hasher {
    context: Context,
    algorithm: &'static str,
}

// === impl Hasher ===

impl Hasher {
    /// For the algorithm of this digest. `None`: the text is not a digest of a supported algorithm.
    pub fn of(digest: &str) -> Option<Self> {
        is_digest(digest).then(|| match digest.split_once(':') {
            Some(("sha512", _)) => Self { context: Context::new(&SHA512), algorithm: "sha512" },
            _ => Self::sha256(),
        })
    }

    /// For SHA-256.
    pub fn sha256() -> Self {
        Self { context: Context::new(&SHA256), algorithm: "sha256" }
    }

    /// Adds content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    /// The digest of all content.
    pub fn digest(self) -> String {
        let text = format!("{}:", self.algorithm);
        self.context.finish().as_ref().iter().fold(text, |text, byte| text + &format!("{byte:02x}"))
    }
}

/// The SHA-256 digest of content. It is used if the registry announces no digest.
pub fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::sha256();
    hasher.update(bytes);
    hasher.digest()
}

/// Whether content has this digest.
pub fn has_digest(bytes: &[u8], digest: &str) -> bool {
    Hasher::of(digest).is_some_and(|mut hasher| {
        hasher.update(bytes);
        hasher.digest() == digest
    })
}

/// Fails if the content does not have the expected digest.
pub(crate) fn check(bytes: &[u8], expected: &str, what: &'static str) -> Result<(), RegistryError> {
    if has_digest(bytes, known(expected, what)?) {
        Ok(())
    } else {
        Err(RegistryError::malformed(what, "its content does not have its digest"))
    }
}
