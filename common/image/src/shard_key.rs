//! The key that places an image on the ring.

use std::borrow::Cow;

use crate::{Constraint, Image, parse_version};

/// What the ring hashes for a request: its `image`, and the `tag` field that newer callers send beside it.
///
/// * The canonical reference, so that all spellings of an image share one shard.
/// * A tag field that is a version is a literal tag, as kpt has it: the reference with that tag.
/// * With any other tag constraint, the repository alone: which tag it stands for is the runner's to find out and may
///   change, and the answer is worth sharing. A field that does not parse as a [`Constraint`] does not count, nor does
///   any beside a digest.
/// * The text as it came, when it is no reference: routing never refuses, the runner does and says why. Such
///   a key is as long as the caller made it.
pub fn shard_key<'a>(image: &'a str, tag_field: Option<&str>, default_prefix: &str) -> Cow<'a, str> {
    let Ok(parsed) = Image::parse(image, default_prefix) else { return Cow::Borrowed(image) };
    let Some(tag) = tag_field.filter(|_| parsed.digest().is_none()) else {
        return Cow::Owned(parsed.as_str().to_owned());
    };
    Cow::Owned(match parse_version(tag) {
        Some(_) => {
            parsed.with_tag(tag).map_or_else(|_| parsed.as_str().to_owned(), |image| image.to_string())
        }
        None if Constraint::parse(tag).is_ok() => parsed.repository().to_owned(),
        None => parsed.as_str().to_owned(),
    })
}
