//! Parses image references. Asserts that the canonical form of an image is parsed to the same
//! image, and that the pod names for the image are valid.

#![no_main]

use libfuzzer_sys::fuzz_target;
use porch_fn_fuzz::texts;
use porch_fn_image::{Constraint, Image, parse_version, pod_name, shard_key};

fuzz_target!(|data: &[u8]| {
    let [reference, tag, prefix] = texts(data);
    let tags = [tag, "v1.2.3", "1.0.0-rc.1", "latest", "v0.4"];
    if let Some(constraint) = Constraint::parse(tag)
        && let Some(highest) = constraint.highest(tags)
    {
        assert!(tags.contains(&highest));
        assert!(constraint.matches(&parse_version(highest).expect("the highest tag is a version")));
    }
    let key = shard_key(reference, tag, prefix);
    let Ok(image) = Image::parse(reference, prefix) else {
        assert_eq!(key, reference);
        return;
    };
    assert!(key.starts_with(image.repository()));
    let again = Image::parse(image.as_str(), "example.com/other").expect("a canonical form is a reference");
    assert_eq!(again, image);
    assert_eq!(
        (again.registry(), again.repository(), again.tag(), again.digest()),
        (image.registry(), image.repository(), image.tag(), image.digest())
    );
    assert!(image.tag().is_some() || image.digest().is_some());
    if let Ok(tagged) = image.with_tag(tag) {
        assert_eq!((tagged.tag(), tagged.repository()), (Some(tag), image.repository()));
    }
    for name in [pod_name(&image, 0, ""), pod_name(&image, u32::MAX, ""), pod_name(&image, 7, tag)] {
        assert!(name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
        assert!(!name.ends_with('-'), "{name}");
    }
});
