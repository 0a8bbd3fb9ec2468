//! The key that places an image on the ring.

use std::borrow::Cow;

use crate::{Constraint, Image, parse_version};

/// The text that the ring hashes for a request, from its `image` and the `tag` field of newer
/// callers:
///
/// * The canonical reference, so that all spellings of an image share one shard.
/// * A tag field that is a version is a literal tag, as in kpt: the reference with that tag.
/// * With any other tag constraint, the repository alone. The runner resolves the constraint, and
///   the result may change; one runner then resolves it for all callers. A field that is not a
///   [`Constraint`] does not count, and no field counts with a digest.
/// * The text as sent if it is not a reference: routing never rejects; the runner does, and gives
///   the reason. The length of such a key is not bounded here.
pub fn shard_key<'a>(image: &'a str, tag_field: Option<&str>, default_prefix: &str) -> Cow<'a, str> {
    let Ok(parsed) = Image::parse(image, default_prefix) else { return Cow::Borrowed(image) };
    let Some(tag) = tag_field.filter(|_| parsed.digest().is_none()) else {
        return Cow::Owned(parsed.as_str().to_owned());
    };
    Cow::Owned(match parse_version(tag) {
        Some(_) => {
            parsed.with_tag(tag).map_or_else(|_| parsed.as_str().to_owned(), |image| image.to_string())
        }
        None if Constraint::parse(tag).is_some() => parsed.repository().to_owned(),
        None => parsed.as_str().to_owned(),
    })
}
