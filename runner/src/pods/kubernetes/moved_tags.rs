//! Follows the tags of images that have pods. If a tag moves, the pool replaces the image's pods
//! like any outdated pods.
//!
//! Only the owner of an image queries its tag, since only the owner replaces pods. Other runners
//! notice a moved tag when they create a pod.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use porch_fn_pool::OwnedShards;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::backend::Shared;

/// Maximum number of concurrent queries.
const MAX_QUERIES: usize = 4;
/// The interval between queries is half the validity of an answer, but within these limits.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Queries tags forever. An answer is valid for `ttl`.
pub(crate) async fn follow(shared: Arc<Shared>, owned: watch::Receiver<OwnedShards>, ttl: Duration) {
    let mut ticks = interval((ttl / 2).clamp(SHORTEST, LONGEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let ownership = owned.borrow().clone();
        let images = shared.store.images();
        let mine = images.iter().filter(|(_, shard_key)| ownership.owns(shard_key)).map(|(image, _)| image);
        stream::iter(mine).for_each_concurrent(MAX_QUERIES, |image| shared.images.revalidate(image)).await;
    }
}
