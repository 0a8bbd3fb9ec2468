//! Labels and annotations of function pods: what runners of all versions tell each other through the API server.
//!
//! A pod is ours when it carries [`MANAGED_BY`], and it is of an image when its annotation `fn.kpt.dev/image-reference` says so:
//! a name holds only 32 bits of hash, which prove nothing.

/// Label that every object of ours carries, and no other is ever touched.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const MANAGER: &str = "porch-fn-runner";
/// Label: the pod's own name, which its Service selects. The original's label.
pub const IMAGE: &str = "fn.kpt.dev/image";
/// Annotation: the canonical image reference.
pub(crate) const IMAGE_REFERENCE: &str = "fn.kpt.dev/image-reference";
/// Annotation: the slot, a decimal number.
pub(crate) const SLOT: &str = "fn.kpt.dev/slot";
/// Annotation: the uid of the stuck pod whose name is passed by; absent otherwise.
pub(crate) const PAST: &str = "fn.kpt.dev/past";
/// Annotation: what the ring hashes to find the owner.
pub(crate) const SHARD_KEY: &str = "fn.kpt.dev/shard-key";
/// Annotation: which configuration the pod was made from. The original's annotation.
pub const TEMPLATE_VERSION: &str = "fn.kpt.dev/template-version";
/// Annotation: the time of that configuration, RFC 3339.
pub(crate) const CONFIG_TIME: &str = "fn.kpt.dev/config-time";
/// Annotation: the digest of the image that the pod was made from, if its creator knew it.
pub(crate) const IMAGE_DIGEST: &str = "fn.kpt.dev/image-digest";
/// Annotation: since when the tag has stood for that digest, as far as its creator knew, RFC 3339.
pub(crate) const RESOLVED_AT: &str = "fn.kpt.dev/resolved-at";
/// Annotation: what the image runs, a JSON array of words. With the digest it is all that a registry is asked for.
pub(crate) const ENTRYPOINT: &str = "fn.kpt.dev/entrypoint";
/// Annotation: the pod may be collected past this moment, RFC 3339.
pub(crate) const RECLAIM_AFTER: &str = "fn.kpt.dev/reclaim-after";
/// Annotation: when a runner that has no place for a pod of its own asked this pod's owner to evict it, RFC 3339.
pub(crate) const PLACE_WANTED: &str = "fn.kpt.dev/place-wanted";
/// The container that runs the function, by the template's contract.
pub const CONTAINER: &str = "function";
/// The container of the inline template that brings the wrapper-server.
pub const WRAPPER_CONTAINER: &str = "wrapper-server";
/// The port of the wrapper-server.
pub(crate) const PORT: u16 = 9446;
