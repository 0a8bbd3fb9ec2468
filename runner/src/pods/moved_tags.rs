//! Follows the tags of images that have pods. If a tag moves, the pool replaces the image's pods
//! like any outdated pods.
//!
//! Only the owner of an image queries its tag, since only the owner replaces pods. Other runners
//! notice a moved tag when they create a pod.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use porch_fn_pool::{ImageKey, OwnedShards, ShardKey};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Maximum number of concurrent queries.
const MAX_QUERIES: usize = 4;
/// The interval between queries is half the validity of an answer, but within these limits.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Queries tags forever. An answer is valid for `ttl`. `images` returns the images that have pods,
/// and `revalidate` queries the tag of one.
pub(crate) async fn follow<I, F>(
    images: impl Fn() -> I,
    revalidate: impl Fn(ImageKey) -> F,
    owned: watch::Receiver<OwnedShards>,
    ttl: Duration,
) where
    I: IntoIterator<Item = (ImageKey, ShardKey)>,
    F: Future<Output = ()>,
{
    let mut ticks = interval((ttl / 2).clamp(SHORTEST, LONGEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let ownership = owned.borrow().clone();
        let mine = images().into_iter().filter(|(_, shard_key)| ownership.owns(shard_key));
        let mine: Vec<_> = mine.map(|(image, _)| image).collect();
        stream::iter(mine).for_each_concurrent(MAX_QUERIES, &revalidate).await;
    }
}
