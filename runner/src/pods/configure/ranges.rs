//! Resolves tag ranges of FunctionConfigs, such as `~0.2`, to the images to warm up or keep.
//!
//! Only a registry knows the tags, so this runs in its own task: neither readiness nor a call waits
//! for it. Few requests run at once, each has a time limit, and a failed request is repeated after
//! a pause.

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

use crate::pods::images::Resolve;
use crate::settings::{CurrentSettings, changed};

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of concurrent requests. It is low, because calls query the same registries and
/// the runner limits the requests to each registry.
const MAX_REQUESTS: usize = 2;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LAST_PAUSE: Duration = Duration::from_mins(30);
/// How long an answer is valid. Then this module asks again. The answer is from a list of tags even if the list has expired, and refreshes the list in the background. So a
/// new version may be missing in one answer, and appear only in the next one.
const VALID_FOR: Duration = Duration::from_hours(1);

/// Keeps `resolved` up to date until its receivers are gone. Without `warm_up`, it resolves only
/// ranges of FunctionConfigs with a minimum number of pods.
pub(crate) async fn follow(
    mut current: watch::Receiver<CurrentSettings>,
    images: Arc<impl Resolve>,
    warm_up: bool,
    resolved: watch::Sender<Resolved>,
) {
    let permits = Semaphore::new(MAX_REQUESTS);
    let mut ranges = HashSet::new();
    let mut following = FuturesUnordered::new();
    loop {
        let now = current.borrow_and_update().clone();
        let wanted = if now.complete { now.settings.ranges(warm_up) } else { Vec::new() };
        let wanted: HashSet<_> = wanted.into_iter().collect();
        if wanted != ranges {
            ranges = wanted;
            resolved.send_if_modified(|known| {
                let before = known.len();
                known.retain(|range, _| ranges.contains(range));
                known.len() != before
            });
            // This restarts all ranges. Answers are cached, so a resolved range gets its
            // answer without a wait for a registry. A range in a pause after a failure is tried
            // again at once.
            let follow = |range: &Range| follow_one(range.clone(), &*images, &permits, &resolved);
            following = ranges.iter().map(follow).collect();
        }
        tokio::select! {
            () = resolved.closed() => return,
            () = changed(&mut current) => {}
            // Runs the futures, which never end.
            Some(()) = following.next() => {}
        }
    }
}

/// Keeps the image of one range up to date, forever. After a failure the known image stays.
async fn follow_one(
    range: Range,
    images: &impl Resolve,
    permits: &Semaphore,
    resolved: &watch::Sender<Resolved>,
) {
    let (repository, constraint) = (range.repository.repository(), &range.constraint);
    let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        let permit = permits.acquire().await;
        let answer = resolve(&range, images).await;
        drop(permit);
        let pause = match answer {
            Ok(image) => {
                backoff.reset();
                resolved.send_if_modified(|known| {
                    let is_new = known.get(&range) != Some(&image);
                    if is_new {
                        tracing::info!(repository, constraint, %image, "found the image to warm up");
                        known.insert(range.clone(), image);
                    }
                    is_new
                });
                VALID_FOR
            }
            Err(error) => {
                let pause = backoff.next_pause();
                if pause == FIRST_PAUSE {
                    tracing::warn!(
                        repository,
                        constraint,
                        error,
                        "an image of a FunctionConfig is not warmed up: its registry does not answer which tag \
                         satisfies the constraint; the runner retries later"
                    );
                } else {
                    tracing::debug!(repository, constraint, error, "the tag to warm up is still unknown");
                }
                pause
            }
        };
        // The random part keeps runners from sending their requests at the same moment.
        sleep(spread(pause, 0.8..1.2)).await;
    }
}

async fn resolve(range: &Range, images: &impl Resolve) -> Result<Image, String> {
    let constraint = Constraint::parse(&range.constraint).ok_or("not a version constraint")?;
    let answer = timeout(REQUEST_TIMEOUT, images.resolve(&range.repository, &constraint)).await;
    let answer = answer.map_err(|_| format!("no answer within {}s", REQUEST_TIMEOUT.as_secs()))?;
    answer.map_err(|error| error.to_string())
}
