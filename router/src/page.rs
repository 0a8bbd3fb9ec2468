//! Collects the data of the router's pages.

use std::collections::HashMap;

use porch_fn_ring::{HASH_SCHEME, VIRTUAL_NODES};
use porch_fn_status_page::{
    ImageInfo, Known, MAX_IMAGES, Recordings, RingInfo, RouterInfo, ShardInfo, Shards,
};

use crate::health::HealthState;
use crate::service::Router;
use crate::view::View;

/// The current data. `discovery_error` is discovery's last error, if there is one.
pub(crate) fn known(
    view: &View,
    router: &Router,
    discovery_error: Option<String>,
    info: RouterInfo,
) -> Known {
    let images = router.images(MAX_IMAGES).into_iter().map(|(key, in_flight)| ImageInfo {
        owner: view.ring.owner(&key).map(ToString::to_string).unwrap_or_default(),
        image: key.to_string(),
        in_flight,
    });
    let images: Vec<_> = images.collect();
    let mut owned: HashMap<&str, usize> = HashMap::new();
    for image in &images {
        *owned.entry(&image.owner).or_default() += 1;
    }
    let shards = view.runners.iter().map(|runner| {
        let (calls, failures) = runner.totals();
        ShardInfo {
            address: runner.address.to_string(),
            state: runner.state().into_str().to_owned(),
            listed: runner.is_listed(),
            in_flight: runner.in_flight(),
            load: runner.load(),
            calls,
            failures,
            owned: owned.get(&*runner.address).copied().unwrap_or_default(),
        }
    });
    let shards = shards.collect();
    let reachable = view
        .runners
        .iter()
        .filter(|runner| !matches!(runner.state(), HealthState::Unreachable | HealthState::Starting));
    let ring = RingInfo { scheme: HASH_SCHEME, virtual_nodes: VIRTUAL_NODES };
    Known {
        reachable: reachable.map(|runner| (runner.address.clone(), runner.connection.clone())).collect(),
        shards: Shards { ring, shards, images, discovery_error },
        ring: view.ring.clone(),
        failures: router.failures.all(),
        router: info,
        recorded: Recordings::default(),
    }
}

/// The router's calls.
pub(crate) fn recordings(view: &View, router: &Router) -> Recordings {
    Recordings {
        by_image: router.recorded(),
        by_runner: view.runners.iter().map(|one| (one.address.to_string(), one.recorded())).collect(),
    }
}
