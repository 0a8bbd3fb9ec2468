//! Which images the ranges of FunctionConfigs stand for whose pods are to be warmed up or kept,
//! such as `~0.2`.
//!
//! A registry says that, so it is asked apart from everything else: neither readiness nor a call
//! waits for it, few questions are open at once, each is bounded, and one that failed is asked
//! again after a pause.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use porch_fn_backoff::{Backoff, spread};
use porch_fn_image::{Constraint, Image};
use porch_fn_settings::{Range, Resolved};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::backend::Catalog;
use crate::settings::CurrentSettings;

/// How long one question may take.
const LONGEST: Duration = Duration::from_mins(1);
/// Questions at once: calls ask the same registries, and each registry has few places.
const AT_ONCE: usize = 2;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LAST_PAUSE: Duration = Duration::from_mins(30);
const BACKOFF: Backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
/// How long an answer holds. The next question is answered from the list that is known, and has it
/// read anew behind the answer: a version that was pushed may be warmed up one question later.
const HOLDS: Duration = Duration::from_hours(1);

/// What is known of one range.
#[derive(Debug)]
struct Found {
    image: Option<Image>,
    again: Instant,
    backoff: Backoff,
}

/// Keeps `resolved` up to date, until nobody reads it. Without `warm_up` only ranges count of which
/// pods are kept.
pub(crate) async fn follow(
    mut current: watch::Receiver<CurrentSettings>,
    catalog: Arc<dyn Catalog>,
    warm_up: bool,
    resolved: watch::Sender<Resolved>,
) {
    let mut known: HashMap<Range, Found> = HashMap::new();
    let (mut asked, mut answers) = (HashSet::new(), FuturesUnordered::new());
    let mut settings_change = true;
    loop {
        let ranges = wanted(&current.borrow_and_update(), warm_up);
        known.retain(|range, _| ranges.contains(range));
        publish(&known, &resolved);
        let now = Instant::now();
        let is_due = |range: &&Range| known.get(range).is_none_or(|known| known.again <= now);
        for range in ranges.iter().filter(is_due) {
            if answers.len() < AT_ONCE && asked.insert(range.clone()) {
                answers.push(ask(Arc::clone(&catalog), range.clone()));
            }
        }
        let next = ranges.iter().filter(|range| !asked.contains(*range)).filter_map(|range| known.get(range));
        let next = next.map(|known| known.again).filter(|again| *again > now).min();
        tokio::select! {
            () = resolved.closed() => return,
            changed = current.changed(), if settings_change => settings_change = changed.is_ok(),
            Some((range, answer)) = answers.next() => {
                asked.remove(&range);
                // Of a range that is gone meanwhile the next round forgets it.
                let before = known.remove(&range);
                known.insert(range.clone(), Found::after(before, &range, answer));
            }
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
        }
    }
}

/// The ranges that count now. Before all is known nothing is warmed up.
fn wanted(current: &CurrentSettings, warm_up: bool) -> HashSet<Range> {
    if current.complete { current.settings.ranges(warm_up).into_iter().collect() } else { HashSet::new() }
}

fn publish(known: &HashMap<Range, Found>, resolved: &watch::Sender<Resolved>) {
    let images = known.iter().filter_map(|(range, known)| Some((range.clone(), known.image.clone()?)));
    let images: Resolved = images.collect();
    resolved.send_if_modified(|before| {
        let changed = *before != images;
        *before = images;
        changed
    });
}

async fn ask(catalog: Arc<dyn Catalog>, range: Range) -> (Range, Result<Image, String>) {
    let answer = match Constraint::parse(&range.constraint) {
        Ok(constraint) => match timeout(LONGEST, catalog.resolve(&range.repository, &constraint)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {}s", LONGEST.as_secs())),
        },
        Err(error) => Err(error.to_string()),
    };
    (range, answer)
}

/// The moment after about this pause: runners must not ask in step.
fn after(pause: Duration) -> Instant {
    Instant::now() + spread(pause, 0.8..1.2)
}

// === impl Found ===

impl Found {
    /// A failure leaves what was known.
    fn after(before: Option<Self>, range: &Range, answer: Result<Image, String>) -> Self {
        let (old, mut backoff) = before.map_or((None, BACKOFF), |before| (before.image, before.backoff));
        let (repository, constraint) = (range.repository.repository(), &range.constraint);
        match answer {
            Ok(image) => {
                if old.as_ref() != Some(&image) {
                    tracing::info!(repository, constraint, %image, "the image to warm up is known");
                }
                Self { image: Some(image), again: after(HOLDS), backoff: BACKOFF }
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
                Self { image: old, again: after(pause), backoff }
            }
        }
    }
}
