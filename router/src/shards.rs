//! The `/shards` page: ring, runners and images as JSON, for people, `porch-fn shards` and dashboards.

use std::collections::BTreeMap;

use porch_fn_ring::{HASH_SCHEME, VIRTUAL_NODES};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::service::Router;
use crate::view::View;

/// Images shown, busiest first.
const MAX_IMAGES: usize = 1000;

/// The page. Fields are only ever added.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shards {
    /// How images are hashed.
    pub ring: RingInfo,
    /// Every runner known.
    pub shards: Vec<ShardInfo>,
    /// Images asked for lately through this router.
    pub images: Vec<ImageInfo>,
    /// What is wrong with discovery, which then keeps the runners that it knew.
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
    /// `well`, `held down`, `passed over`, `starting`, `unreachable` or `draining`.
    pub state: String,
    /// Whether discovery lists it. One that is not listed any more, and answers, stays for a while.
    #[serde(default = "listed", skip_serializing_if = "Clone::clone")]
    pub listed: bool,
    /// This router's calls in flight on it.
    pub in_flight: usize,
    /// All calls in flight on it, other routers' included, as far as is known.
    #[serde(default)]
    pub load: usize,
    /// Calls this router sent to it.
    pub calls: usize,
    /// Those of them that broke off or could not be sent.
    pub failures: usize,
    /// How many of `images` it owns.
    pub owned: usize,
}

/// One image.
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its shard key: the canonical reference, or the repository under a tag constraint.
    pub image: String,
    /// The runner that the ring gives it.
    pub owner: String,
    /// Its calls in flight through this router.
    pub in_flight: usize,
}

/// What an older router's page means.
fn listed() -> bool {
    true
}

impl Shards {
    /// The page of this moment.
    pub(crate) fn now(view: &View, router: &Router, discovery_error: Option<&str>) -> Self {
        let images: Vec<_> = router
            .images(MAX_IMAGES)
            .into_iter()
            .map(|load| ImageInfo {
                owner: view.ring().owner(&load.key).map(ToString::to_string).unwrap_or_default(),
                image: load.key.to_string(),
                in_flight: load.in_flight,
            })
            .collect();
        let mut owned: BTreeMap<&str, usize> = BTreeMap::new();
        for image in &images {
            *owned.entry(&image.owner).or_default() += 1;
        }
        let now = Instant::now();
        let shards = view.shards().iter().map(|shard| {
            let (calls, failures) = shard.totals();
            ShardInfo {
                address: shard.identity().to_string(),
                state: shard.standing().as_str().to_owned(),
                listed: shard.is_listed(),
                in_flight: shard.in_flight(),
                load: shard.load(router.routers(), now),
                calls,
                failures,
                owned: owned.get(shard.identity().as_str()).copied().unwrap_or_default(),
            }
        });
        let shards = shards.collect();
        let ring = RingInfo { scheme: HASH_SCHEME, virtual_nodes: VIRTUAL_NODES };
        Self { ring, shards, images, discovery_error: discovery_error.map(str::to_owned) }
    }

    /// As JSON text.
    pub(crate) fn to_json(&self) -> String {
        // Strings and numbers only: serialising cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
