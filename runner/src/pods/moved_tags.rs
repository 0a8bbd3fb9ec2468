//! Follows the tags of images that have pods. If a tag moves, the pool replaces the image's pods
//! like any outdated pods.
//!
//! Only the owner of an image queries its tag, since only the owner replaces pods. Other runners
//! notice a moved tag when they create a pod.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::{MissedTickBehavior, interval};

use super::driver::Handle;
use super::images::ImageSource;

/// Maximum number of concurrent queries.
const MAX_QUERIES: usize = 4;
/// The interval between queries is half the validity of an answer, but within these limits.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Queries the tags of the pool's images forever. An answer is valid for `ttl`.
pub(crate) async fn follow(pool: Handle, images: Arc<ImageSource>, ttl: Duration) {
    let mut ticks = interval((ttl / 2).clamp(SHORTEST, LONGEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let revalidate = |image| images.revalidate(image);
        stream::iter(pool.owned_images()).for_each_concurrent(MAX_QUERIES, revalidate).await;
    }
}
