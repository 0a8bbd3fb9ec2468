//! Translates a Kubernetes pod object into the pool's form. `runner/pool/src/lib.rs` explains the
//! pool's terms.

use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use porch_fn_pool::{
    Digest, ImageContent, ImageKey, Phase, Pod, PodName, PodRecipe, ResourceVersion, ShardKey, Time, Uid,
    Version,
};

use super::names;
use super::times::{from_timestamp, parse_time};

/// A function pod, which this or another runner created.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Observed {
    /// The pod for the pool. [`super::crash`] sets its phase, which also depends on earlier states.
    pub(super) pod: Pod,
    /// The pod's address, once it has one.
    pub(super) ip: Option<IpAddr>,
    /// The object's name in the cluster.
    pub(super) object_name: String,
    /// When the object was created.
    pub(super) created: Option<Time>,
    /// The image's command, from the annotation of the pod's creator.
    pub(super) entrypoint: Option<Vec<String>>,
}

/// Reads a pod. Returns `None` if it is not a function pod or lacks a required annotation.
pub(super) fn observe(pod: &v1::Pod) -> Option<Observed> {
    let metadata = &pod.metadata;
    if !names::is_ours(metadata) {
        return None;
    }
    let annotation = |name: &str| {
        let text = metadata.annotations.as_ref()?.get(name);
        text.map(String::as_str).filter(|text| !text.is_empty())
    };
    let image = ImageKey::from(annotation(names::IMAGE_REFERENCE)?);
    let name = PodName {
        slot: annotation(names::SLOT)?.parse().ok()?,
        past: annotation(names::PAST).map(Uid::from),
        image: image.clone(),
    };
    let uid = Uid::from(metadata.uid.as_deref()?);
    let resource_version = ResourceVersion::from(metadata.resource_version.as_deref()?);
    let object_name = metadata.name.clone()?;
    let created = metadata.creation_timestamp.as_ref().and_then(|at| from_timestamp(at.0));
    let entrypoint = annotation(names::ENTRYPOINT).and_then(|text| serde_json::from_str(text).ok());
    let pod_ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
    let pod = Pod {
        name,
        uid,
        resource_version,
        shard_key: ShardKey::from(annotation(names::SHARD_KEY).unwrap_or(image.as_str())),
        terminating_since: metadata
            .deletion_timestamp
            .as_ref()
            .map(|at| from_timestamp(at.0).unwrap_or_default()),
        phase: Phase::Pending(None),
        recipe: PodRecipe {
            version: Version::from(annotation(names::TEMPLATE_VERSION).unwrap_or_default()),
            config_time: annotation(names::CONFIG_TIME).and_then(parse_time),
            content: annotation(names::IMAGE_DIGEST).map(|digest| ImageContent {
                digest: Digest::from(digest),
                resolved: annotation(names::RESOLVED_AT).and_then(parse_time),
            }),
        },
        reclaim_after: annotation(names::RECLAIM_AFTER).and_then(parse_time),
        place_wanted: annotation(names::PLACE_WANTED).and_then(parse_time),
    };
    Some(Observed { pod, ip: pod_ip.and_then(|ip| ip.parse().ok()), object_name, created, entrypoint })
}

#[cfg(test)]
mod tests;
