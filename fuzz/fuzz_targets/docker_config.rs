//! A Docker config file. The first line of the input is an image reference. An error text is short.

#![no_main]

use libfuzzer_sys::fuzz_target;
use porch_fn_image::Image;
use porch_fn_registry::fuzz_docker_config;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let image = std::str::from_utf8(&data[..end]).ok().and_then(|image| Image::parse(image, "").ok());
    let image = image.unwrap_or_else(|| Image::parse("ghcr.io/a/b:v1", "").expect("a reference"));
    if let Err(error) = fuzz_docker_config(&data[end..], &image) {
        assert!(!error.is_empty() && error.len() < 1024, "{error}");
    }
});
