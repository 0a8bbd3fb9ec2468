//! Names of function pods.
//!
//! A pod's usual name depends only on the canonical image and the slot. A slot is the pod's number
//! among the pods of its image. If runners race to create the same pod, they collide on the name,
//! and the API server accepts only one of them. The pod's Service has the same name. So the name
//! must be a DNS-1035 label: letters, digits and `-`, a letter first, at most 63 bytes.
//!
//! All versions of this crate must compute the same names. Otherwise a new runner would not find
//! the pods of an old one.

use xxhash_rust::xxh3::xxh3_64;

use crate::Image;

const MAX_LEN: usize = 63;
const MAX_TAG_LEN: usize = 20;
const DIGEST_LEN: usize = 12;

/// The name of the pod in `slot`: `name-tag-slot-hash8`, such as `set-namespace-v041-0-1ab4667a`.
///
/// Name and tag are for people and may be cut. The hash covers the whole reference and the slot.
/// Its 32 bits do not prove the image: before a runner adopts a pod, it compares the reference in
/// the pod's annotation.
///
/// While a pod that is stuck terminating still has this name, `past` is that pod's uid, and else
/// empty. So all runners choose the same other name.
pub fn pod_name(image: &Image, slot: u32, past: &str) -> String {
    // Different inputs give different bytes: a reference contains no NUL, and the slot has a fixed
    // width.
    let mut identity = Vec::with_capacity(image.as_str().len() + 5 + past.len());
    identity.extend_from_slice(image.as_str().as_bytes());
    identity.push(0);
    identity.extend_from_slice(&slot.to_le_bytes());
    identity.extend_from_slice(past.as_bytes());
    let hash = xxh3_64(&identity) as u32;
    let suffix = format!("-{slot}-{hash:08x}");

    let tag = version(image);
    let tag = if tag.is_empty() { tag } else { format!("-{tag}") };
    let mut name = label(image.name().replace('.', "-"));
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.insert_str(0, "fn-");
    }
    // The suffix takes at most 20 bytes and the tag 21, so at least 22 are left for the name.
    name.truncate(MAX_LEN - suffix.len() - tag.len());
    name.truncate(name.trim_end_matches('-').len());
    name + &tag + &suffix
}

/// The tag, or the start of the digest if there is no tag.
fn version(image: &Image) -> String {
    if let Some(tag) = image.tag() {
        let mut tag = label(tag.replace('.', ""));
        tag.truncate(MAX_TAG_LEN);
        return tag.trim_matches('-').to_owned();
    }
    let digest = image.digest().and_then(|digest| digest.split_once(':'));
    digest.map(|(_, hex)| hex.chars().take(DIGEST_LEN).collect()).unwrap_or_default()
}

fn label(mut text: String) -> String {
    text.make_ascii_lowercase();
    text.replace('_', "-")
}
