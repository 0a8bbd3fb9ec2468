//! Parses patterns of allowed images. Asserts that a list allows an image exactly if one of its
//! patterns allows the image, and that a reference is a pattern that allows its own image.

#![no_main]

use libfuzzer_sys::fuzz_target;
use porch_fn_fuzz::texts;
use porch_fn_image::{AllowedImages, Image};

fuzz_target!(|data: &[u8]| {
    let [patterns, reference, tag, prefix] = texts(data);
    let patterns: Vec<_> = patterns.split(',').take(8).collect();
    if let Ok(list) = AllowedImages::parse(&patterns, prefix) {
        let alone = patterns.iter().filter_map(|pattern| AllowedImages::parse(&[pattern], prefix).ok());
        let allowed: Vec<_> = alone.map(|one| one.check(reference, tag).is_ok()).collect();
        assert_eq!(allowed.len(), patterns.len());
        assert_eq!(list.check(reference, tag).is_ok(), allowed.contains(&true));
    }
    let Ok(image) = Image::parse(reference, prefix) else { return };
    for own in [image.as_str(), image.repository(), "**"] {
        let list = AllowedImages::parse(&[own], prefix).expect("a reference is a pattern");
        assert!(list.allows(&image), "{own}");
    }
    let tagged = AllowedImages::parse(&[format!("{}:no-such-tag", image.repository())], prefix);
    assert_eq!(tagged.expect("a pattern").allows(&image), image.as_str().ends_with(":no-such-tag"));
});
