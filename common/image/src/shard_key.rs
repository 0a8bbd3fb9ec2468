//! The key that places an image on the ring.

use crate::{Constraint, Image, parse_version};

/// Returns the text that the ring hashes for a request with these `image` and `tag` fields:
///
/// * The canonical reference, so that all spellings of an image share one shard.
/// * If the tag field is a version, the reference with this version as its tag. For kpt, too,
///   a version is a tag and not a constraint.
/// * If the tag field is any other constraint, only the repository. The result of the constraint
///   may change. With this key, one runner resolves it for all callers.
/// * Any other tag field is ignored. If `image` has a digest, every tag field is ignored.
/// * An `image` that is not a reference is returned unchanged, whatever its length. The runner
///   rejects it and gives the reason.
pub fn shard_key(image: &str, tag_field: &str, default_prefix: &str) -> String {
    let Ok(parsed) = Image::parse(image, default_prefix) else { return image.to_owned() };
    if parsed.digest().is_some() {
        parsed.to_string()
    } else if parse_version(tag_field).is_some() {
        parsed.with_tag(tag_field).unwrap_or(parsed).to_string()
    } else if Constraint::parse(tag_field).is_some() {
        parsed.repository().to_owned()
    } else {
        parsed.to_string()
    }
}
