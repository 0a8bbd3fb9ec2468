//! Parses a Docker config file, and looks up the credential of an image in it. The first line of
//! the input is the image's reference; the rest is the file. Asserts that an error text has 1 to
//! 1023 bytes.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use porch_fn_image::Image;
use porch_fn_registry::CredentialsFileContent;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let image = std::str::from_utf8(&data[..end]).ok().and_then(|image| Image::parse(image, "").ok());
    let image = image.unwrap_or_else(|| Image::parse("ghcr.io/a/b:v1", "").expect("a reference"));
    match CredentialsFileContent::parse(Bytes::copy_from_slice(&data[end..])) {
        Ok(file) => _ = file.has_credential(&image),
        Err(error) => assert!(!error.is_empty() && error.len() < 1024, "{error}"),
    }
});
