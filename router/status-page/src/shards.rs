//! The `/shards` page: ring, runners and images as JSON, for people, `porch-fn shards` and
//! dashboards.

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum number of images on a page, busiest first.
pub const MAX_IMAGES: usize = 1000;

/// The page. Fields are only ever added.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shards {
    /// How images are hashed.
    pub ring: RingInfo,
    /// Every runner known.
    pub shards: Vec<ShardInfo>,
    /// Images that this router recently had calls for, up to [`MAX_IMAGES`].
    pub images: Vec<ImageInfo>,
    /// Discovery's last error. Discovery keeps the last known runners until it recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_error: Option<String>,
}

/// How images are hashed.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingInfo {
    /// Version of the hash scheme: routers and runners of one version agree.
    pub scheme: u32,
    /// Points per runner.
    pub virtual_nodes: u16,
}

/// One runner.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardInfo {
    /// Its address, which is its name on the ring.
    pub address: String,
    /// `healthy`, `cooling_down`, `ejected`, `starting`, `unreachable` or `draining`.
    #[serde(deserialize_with = "current_state")]
    pub state: String,
    /// Whether discovery lists the runner. An unlisted runner stays for a while if it is healthy.
    #[serde(default = "listed", skip_serializing_if = "Clone::clone")]
    pub listed: bool,
    /// This router's calls in flight on it.
    pub in_flight: usize,
    /// Estimate of all calls in flight on the runner, including other routers' calls.
    #[serde(default)]
    pub load: usize,
    /// Calls this router sent to it.
    pub calls: usize,
    /// Calls that were interrupted or could not be sent.
    pub failures: usize,
    /// How many of `images` it owns.
    pub owned: usize,
}

/// One image.
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its shard key: the canonical reference, or the repository under a tag constraint.
    pub image: String,
    /// The runner that owns the image on the ring.
    pub owner: String,
    /// Its calls in flight through this router.
    pub in_flight: usize,
}

/// Reads the state. The previous version used other names for the same states.
fn current_state<'de, D: Deserializer<'de>>(page: D) -> Result<String, D::Error> {
    let state = String::deserialize(page)?;
    Ok(match state.as_str() {
        "well" => "healthy".to_owned(),
        "held down" => "cooling_down".to_owned(),
        "passed over" => "ejected".to_owned(),
        _ => state,
    })
}

/// The page of an older router has no such field.
fn listed() -> bool {
    true
}
