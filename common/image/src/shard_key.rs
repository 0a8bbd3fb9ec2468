//! The key that places an image on the ring.

use std::borrow::Cow;

use crate::{Constraint, Image};

/// What the ring hashes for a request: its `image`, and the `tag` field that newer callers send beside it.
///
/// * The canonical reference, so that all spellings of an image share one shard.
/// * With a tag constraint, the repository alone: which tag it stands for is the runner's to find out and may
///   change, and the answer is worth sharing. A field that does not parse as a [`Constraint`] does not count.
/// * The text as it came, when it is no reference: routing never refuses, the runner does and says why. Such
///   a key is as long as the caller made it.
pub fn shard_key<'a>(image: &'a str, tag_field: Option<&str>, default_prefix: &str) -> Cow<'a, str> {
    let Ok(parsed) = Image::parse(image, default_prefix) else { return Cow::Borrowed(image) };
    let constrained = tag_field.is_some_and(|tag| Constraint::parse(tag).is_ok());
    Cow::Owned(if constrained { parsed.repository() } else { parsed.as_str() }.to_owned())
}
