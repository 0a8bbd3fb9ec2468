//! Names of function pods.
//!
//! A pod's name follows from (canonical image, slot) alone, so runners that race to create the same pod
//! collide on the name, and the API server decides. The Service in front of a pod has the same name, hence
//! DNS-1035: letters, digits and `-`, a letter first, at most 63 bytes.
//!
//! The names are an agreement between versions: one that changed them would not find its predecessor's pods.

use xxhash_rust::xxh3::xxh3_64;

use crate::Image;

const MAX_LEN: usize = 63;
const MAX_TAG_LEN: usize = 20;
const DIGEST_LEN: usize = 12;

/// The name of the pod in `slot`: `name-tag-slot-hash8`, such as `set-namespace-v041-0-1ab4667a`.
///
/// Name and tag are there for people and may be cut; the hash covers the whole reference and the slot. It has
/// 32 bits and is no proof of the image: whoever adopts a pod compares the reference that the pod carries.
pub fn pod_name(image: &Image, slot: u32) -> String {
    name(image, slot, "")
}

/// The name that passes a pod in `slot` which is stuck terminating and holds its name. It follows from that
/// pod's `uid`, so that all runners take the same one.
pub fn pod_name_past(image: &Image, slot: u32, uid: &str) -> String {
    name(image, slot, uid)
}

fn name(image: &Image, slot: u32, uid: &str) -> String {
    // No two inputs share their bytes: a reference holds no NUL, and the slot has a fixed width.
    let mut identity = Vec::with_capacity(image.as_str().len() + 5 + uid.len());
    identity.extend_from_slice(image.as_str().as_bytes());
    identity.push(0);
    identity.extend_from_slice(&slot.to_le_bytes());
    identity.extend_from_slice(uid.as_bytes());
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

/// The tag, or the start of the digest where there is none.
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
