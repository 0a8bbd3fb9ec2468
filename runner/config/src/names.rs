//! Labels and annotations of function pods. Runners of all versions exchange them through the API
//! server.
//!
//! A runner manages every pod with the label [`MANAGED_BY`]. The pod's image is in its annotation
//! `fn.kpt.dev/image-reference`. The pod's name has only 32 bits of hash, which do not identify an
//! image.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of every object that runners manage. Runners never change objects without it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "porch-fn-runner";
/// Label: the pod's own name, which its Service selects. Porch's function runner uses the same
/// label.
pub const IMAGE: &str = "fn.kpt.dev/image";
/// Annotation: the canonical image reference.
pub const IMAGE_REFERENCE: &str = "fn.kpt.dev/image-reference";
/// Annotation: the slot (the pod's number among the pods of its image), a decimal number.
pub const SLOT: &str = "fn.kpt.dev/slot";
/// Annotation: the uid of an earlier pod that is stuck in termination and still holds the slot's
/// usual name. Without such a pod, the annotation is absent.
pub const PAST: &str = "fn.kpt.dev/past";
/// Annotation: the shard key, whose hash on the ring gives the pod's owner.
pub const SHARD_KEY: &str = "fn.kpt.dev/shard-key";
/// Annotation: the version of the configuration that the pod was made from. Porch's function runner
/// uses the same annotation.
pub const TEMPLATE_VERSION: &str = "fn.kpt.dev/template-version";
/// Annotation: when that configuration last changed, if known, RFC 3339.
pub const CONFIG_TIME: &str = "fn.kpt.dev/config-time";
/// Annotation: the digest of the image that the pod was made from, if its creator knew it.
pub const IMAGE_DIGEST: &str = "fn.kpt.dev/image-digest";
/// Annotation: when the tag began to refer to that digest, as far as the pod's creator knew, RFC
/// 3339.
pub const RESOLVED_AT: &str = "fn.kpt.dev/resolved-at";
/// Annotation: the command that the image runs, a JSON array of words. With it and the digest, a
/// runner need not query the registry.
pub const ENTRYPOINT: &str = "fn.kpt.dev/entrypoint";
/// Annotation: the pod's owner may delete the pod after this time, RFC 3339.
pub const RECLAIM_AFTER: &str = "fn.kpt.dev/reclaim-after";
/// Annotation: when another runner last asked this pod's owner to evict it, RFC 3339. The other
/// runner needs a pod, but all images together already use up the capacity.
pub const PLACE_WANTED: &str = "fn.kpt.dev/place-wanted";
/// The container that runs the function. Every pod template must have a container of this name.
pub const CONTAINER: &str = "function";
/// The container of the built-in template that copies the wrapper-server.
pub const WRAPPER_CONTAINER: &str = "wrapper-server";
/// The port of the wrapper-server.
pub const PORT: u16 = 9446;
/// The environment variables with which the wrapper-server of a new pod announces its address: the
/// runner's address, a one-time token, and the pod's own address.
pub const ANNOUNCE_TO: &str = "PORCH_FN_ANNOUNCE_TO";
/// See [`ANNOUNCE_TO`].
pub const ANNOUNCE_TOKEN: &str = "PORCH_FN_ANNOUNCE_TOKEN";
/// See [`ANNOUNCE_TO`].
pub const ANNOUNCE_ADDRESS: &str = "PORCH_FN_ANNOUNCE_ADDRESS";

/// Whether the object carries our label.
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}
