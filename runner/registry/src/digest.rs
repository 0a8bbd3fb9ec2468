//! Digests of content, `algorithm:hex`. No I/O.

use porch_fn_image::is_digest;
use ring::digest::{SHA256, SHA512, digest};

use crate::RegistryError;

/// Returns the text if it is a digest of a supported algorithm. Only such a text may become part of
/// a URL.
pub(crate) fn known<'a>(text: &'a str, what: &'static str) -> Result<&'a str, RegistryError> {
    let problem = "its digest is neither sha256 with 64 digits nor sha512 with 128";
    if is_digest(text) { Ok(text) } else { Err(RegistryError::malformed(what, problem)) }
}

/// The SHA-256 digest of content. It is used if the registry announces no digest.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex("sha256", digest(&SHA256, bytes).as_ref())
}

/// Fails if the content does not have the expected digest.
pub(crate) fn check(bytes: &[u8], expected: &str, what: &'static str) -> Result<(), RegistryError> {
    let found = if known(expected, what)?.starts_with("sha512:") {
        hex("sha512", digest(&SHA512, bytes).as_ref())
    } else {
        sha256(bytes)
    };
    if found == expected {
        Ok(())
    } else {
        Err(RegistryError::malformed(what, "its content does not have its digest"))
    }
}

fn hex(algorithm: &str, bytes: &[u8]) -> String {
    bytes.iter().fold(format!("{algorithm}:"), |text, byte| text + &format!("{byte:02x}"))
}
