//! What the router shows of itself on its pages.

use std::collections::BTreeMap;

use porch_fn_ring::{HASH_SCHEME, VIRTUAL_NODES};
use porch_fn_status_page::{ImageInfo, Known, MAX_IMAGES, RingInfo, ShardInfo, Shards};
use tokio::time::Instant;

use crate::health::HealthState;
use crate::service::Router;
use crate::view::View;

/// What is known at this moment. `discovery_error` is what is wrong with discovery.
pub(crate) fn known(view: &View, router: &Router, discovery_error: Option<&str>) -> Known {
    let reachable = view
        .runners()
        .iter()
        .filter(|runner| !matches!(runner.state(), HealthState::Unreachable | HealthState::Starting));
    Known {
        shards: shards(view, router, discovery_error),
        ring: view.ring().clone(),
        reachable: reachable.map(|runner| (runner.identity().clone(), runner.connection().clone())).collect(),
        failures: router.failures(),
    }
}

fn shards(view: &View, router: &Router, discovery_error: Option<&str>) -> Shards {
    let owner = |key: &str| view.ring().owner(key).map(ToString::to_string).unwrap_or_default();
    let images: Vec<_> = router
        .images(MAX_IMAGES)
        .into_iter()
        .map(|load| ImageInfo {
            owner: owner(&load.key),
            image: load.key.to_string(),
            in_flight: load.in_flight,
        })
        .collect();
    let mut owned: BTreeMap<&str, usize> = BTreeMap::new();
    for image in &images {
        *owned.entry(&image.owner).or_default() += 1;
    }
    let now = Instant::now();
    let shards = view.runners().iter().map(|runner| {
        let (calls, failures) = runner.totals();
        ShardInfo {
            address: runner.identity().to_string(),
            state: runner.state().as_str().to_owned(),
            listed: runner.is_listed(),
            in_flight: runner.in_flight(),
            load: runner.load(router.routers(), now),
            calls,
            failures,
            owned: owned.get(runner.identity().as_str()).copied().unwrap_or_default(),
        }
    });
    let shards = shards.collect();
    let ring = RingInfo { scheme: HASH_SCHEME, virtual_nodes: VIRTUAL_NODES };
    Shards { ring, shards, images, discovery_error: discovery_error.map(str::to_owned) }
}
