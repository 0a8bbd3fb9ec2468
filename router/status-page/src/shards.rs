//! The `/shards` page: ring, runners and images as JSON, for people, `porch-fn shards` and
//! dashboards.

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum number of images on a page, busiest first.
pub const MAX_IMAGES: usize = 1000;

/// The page. Fields are never removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shards {
    /// How images are hashed.
    pub ring: RingInfo,
    /// All known runners.
    pub shards: Vec<ShardInfo>,
    /// Images of recent calls through this router, up to [`MAX_IMAGES`].
    pub images: Vec<ImageInfo>,
    /// Discovery's last error. Discovery keeps the last known runners until it recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_error: Option<String>,
}

/// How images are hashed.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingInfo {
    /// Version of the hash scheme. Routers and runners with the same scheme agree on owners.
    pub scheme: u32,
    /// Number of points on the ring for each runner.
    pub virtual_nodes: u16,
}

/// One runner.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardInfo {
    /// The runner's address, which is its name on the ring.
    pub address: String,
    /// `healthy`, `cooling_down`, `ejected`, `starting`, `unreachable` or `draining`.
    #[serde(deserialize_with = "current_state")]
    pub state: String,
    /// Whether discovery lists the runner. The router keeps an unlisted runner for a while if the
    /// runner reports SERVING.
    #[serde(default = "listed", skip_serializing_if = "Clone::clone")]
    pub listed: bool,
    /// This router's calls in flight on the runner.
    pub in_flight: usize,
    /// Estimate of all calls in flight on the runner, including other routers' calls.
    #[serde(default)]
    pub load: usize,
    /// Calls that this router sent to the runner.
    pub calls: usize,
    /// Calls that were interrupted or could not be sent.
    pub failures: usize,
    /// How many of `images` the runner owns.
    pub owned: usize,
}

/// One image.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The image's shard key: the canonical reference, or the repository if calls have a tag
    /// constraint.
    pub image: String,
    /// The runner that owns the image on the ring.
    pub owner: String,
    /// The image's calls in flight through this router.
    pub in_flight: usize,
}

/// Reads a health state from a router's page. Routers of the previous version use other names for
/// the same states.
fn current_state<'de, D: Deserializer<'de>>(page: D) -> Result<String, D::Error> {
    let state = String::deserialize(page)?;
    Ok(match state.as_str() {
        "well" => "healthy".to_owned(),
        "held down" => "cooling_down".to_owned(),
        "passed over" => "ejected".to_owned(),
        _ => state,
    })
}

/// The default of [`ShardInfo::listed`]: older routers' pages lack the field.
fn listed() -> bool {
    true
}
