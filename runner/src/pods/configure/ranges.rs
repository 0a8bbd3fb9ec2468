//! Resolves tag ranges of FunctionConfigs, such as `~0.2`, to the images to warm up or keep.
//!
//! Only a registry knows the tags, so this runs apart from everything else: neither readiness nor a
//! call waits for it. Few requests run at once, each has a time limit, and a failed request is
//! repeated after a pause.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use porch_fn_backoff::{Backoff, spread};
use porch_fn_image::{Constraint, Image};
use porch_fn_settings::{Range, Resolved};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::super::backend::Catalog;
use crate::settings::{CurrentSettings, changed};

/// How long one request may take.
const LONGEST: Duration = Duration::from_mins(1);
/// The most concurrent requests. Calls query the same registries, and the runner limits the
/// requests to each registry.
const AT_ONCE: usize = 2;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LAST_PAUSE: Duration = Duration::from_mins(30);
/// How long an answer is valid. The next request gets the cached list and starts a refresh in the
/// background, so a new version may be warmed up one request later.
const HOLDS: Duration = Duration::from_hours(1);

/// Keeps `resolved` up to date, until nobody reads it. Without `warm_up`, only ranges whose pods
/// are kept count.
pub(crate) async fn follow(
    mut current: watch::Receiver<CurrentSettings>,
    catalog: Arc<dyn Catalog>,
    warm_up: bool,
    resolved: watch::Sender<Resolved>,
) {
    let places = Semaphore::new(AT_ONCE);
    let mut ranges = HashSet::new();
    let mut following = FuturesUnordered::new();
    loop {
        let now = current.borrow_and_update().clone();
        // None before the settings are complete.
        let wanted = if now.complete { now.settings.ranges(warm_up) } else { Vec::new() };
        let wanted: HashSet<_> = wanted.into_iter().collect();
        if wanted != ranges {
            ranges = wanted;
            resolved.send_if_modified(|known| {
                let before = known.len();
                known.retain(|range, _| ranges.contains(range));
                known.len() != before
            });
            // The answers for remaining ranges are cached, so this does not query a registry again.
            let follow = |range: &Range| follow_one(range.clone(), &*catalog, &places, &resolved);
            following = ranges.iter().map(follow).collect();
        }
        tokio::select! {
            () = resolved.closed() => return,
            () = changed(&mut current) => {}
            // These futures never end.
            Some(()) = following.next() => {}
        }
    }
}

/// Keeps the image of one range up to date, forever. After a failure the known image stays.
async fn follow_one(
    range: Range,
    catalog: &dyn Catalog,
    places: &Semaphore,
    resolved: &watch::Sender<Resolved>,
) {
    let (repository, constraint) = (range.repository.repository(), &range.constraint);
    let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        let place = places.acquire().await;
        let answer = resolve(&range, catalog).await;
        drop(place);
        let pause = match answer {
            Ok(image) => {
                backoff.reset();
                resolved.send_if_modified(|known| {
                    let is_new = known.get(&range) != Some(&image);
                    if is_new {
                        tracing::info!(repository, constraint, %image, "the image to warm up is known");
                        known.insert(range.clone(), image);
                    }
                    is_new
                });
                HOLDS
            }
            Err(error) => {
                let pause = backoff.next_pause();
                if pause == FIRST_PAUSE {
                    tracing::warn!(
                        repository,
                        constraint,
                        error,
                        "an image of a FunctionConfig is not warmed up: its registry does not say which tag satisfies \
                         the constraint; it is asked again later"
                    );
                } else {
                    tracing::debug!(repository, constraint, error, "the tag to warm up is still not known");
                }
                pause
            }
        };
        // The random part keeps runners from asking at the same moment.
        sleep(spread(pause, 0.8..1.2)).await;
    }
}

async fn resolve(range: &Range, catalog: &dyn Catalog) -> Result<Image, String> {
    let constraint = Constraint::parse(&range.constraint).ok_or("not a version constraint")?;
    let answer = timeout(LONGEST, catalog.resolve(&range.repository, &constraint)).await;
    let answer = answer.map_err(|_| format!("no answer within {}s", LONGEST.as_secs()))?;
    answer.map_err(|error| error.to_string())
}
