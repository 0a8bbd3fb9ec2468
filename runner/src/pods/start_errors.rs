//! The last failed start of a pod of each image, for the router's status page. No I/O.
//!
//! A runner records only the pods that it creates itself, so each start is recorded once. A later
//! pod may be another runner's. So the runner also reports when its pods became ready, and the
//! router compares the times of all runners.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use porch_fn_pool::{ImageKey, Time};
use porch_fn_proto::shard::{ImagePods, StartError};
use porch_fn_text::cut;

/// How long a failure and a success are kept. An image that nobody calls again, such as one with a
/// mistyped name, then disappears from the status page.
const KEPT: Duration = Duration::from_hours(1);
/// Maximum number of images with a failure. The oldest failure is dropped.
const MAX_FAILURES: NonZeroUsize = NonZeroUsize::new(100).unwrap();
/// Maximum number of images with a success. The oldest success is dropped.
const MAX_SUCCESSES: NonZeroUsize = NonZeroUsize::new(1000).unwrap();
/// Longest text, in bytes.
const MAX_TEXT: usize = 1000;

/// The last start of each image.
#[derive(Debug)]
pub(super) struct StartErrors {
    failures: LruCache<ImageKey, Failure>,
    successes: LruCache<ImageKey, Time>,
}

#[derive(Debug)]
struct Failure {
    at: Time,
    text: String,
    /// It is only that of a waiting call.
    is_rejection: bool,
}

impl Default for StartErrors {
    fn default() -> Self {
        Self { failures: LruCache::new(MAX_FAILURES), successes: LruCache::new(MAX_SUCCESSES) }
    }
}

impl StartErrors {
    /// The start of a pod failed, or the pod waits because of an error.
    pub(super) fn record_failure(&mut self, image: &ImageKey, text: &str, at: Time) {
        let text = cut(text, MAX_TEXT, "…").into_owned();
        self.failures.put(image.clone(), Failure { at, text, is_rejection: false });
    }

    /// A call waited in vain for a pod that may be another runner's. Unlike a failed start, this is
    /// over when a pod serves a call.
    pub(super) fn record_rejection(&mut self, image: &ImageKey, text: &str, at: Time) {
        let text = cut(text, MAX_TEXT, "…").into_owned();
        self.failures.put(image.clone(), Failure { at, text, is_rejection: true });
    }

    /// A pod serves a call of the image.
    pub(super) fn record_served(&mut self, image: &ImageKey) {
        if self.failures.peek(image).is_some_and(|failure| failure.is_rejection) {
            self.failures.pop(image);
        }
    }

    /// A pod became ready for the first time.
    pub(super) fn record_success(&mut self, image: &ImageKey, at: Time) {
        self.failures.pop(image);
        self.successes.put(image.clone(), at);
    }

    /// Whether the image's last start failed in the last hour.
    pub(super) fn has_failed(&self, image: &ImageKey, now: Time) -> bool {
        self.failures.peek(image).is_some_and(|failure| now.since(failure.at) < KEPT)
    }

    /// The last start of each image in the last hour, for reports: its error, if no later start
    /// succeeded, and when a pod last became ready for the first time.
    pub(super) fn all(&self, now: Time) -> HashMap<ImageKey, ImagePods> {
        let mut all: HashMap<ImageKey, ImagePods> = HashMap::new();
        for (image, Failure { at, text, .. }) in
            self.failures.iter().filter(|(_, it)| now.since(it.at) < KEPT)
        {
            let error = StartError { at_ms: at.as_millis(), text: text.clone() };
            all.entry(image.clone()).or_default().start_error = Some(error);
        }
        for (image, at) in self.successes.iter().filter(|(_, at)| now.since(**at) < KEPT) {
            all.entry(image.clone()).or_default().started_at_ms = at.as_millis();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn image(name: &str) -> ImageKey {
        ImageKey::from(name)
    }

    #[test]
    fn a_failure_stays_until_a_pod_is_ready_or_an_hour_has_passed() {
        let mut errors = StartErrors::default();
        let last = |failed: Option<(u64, &str)>, succeeded: u64| {
            let error = |(at, text): (u64, &str)| StartError { at_ms: at * 1000, text: text.to_owned() };
            let (start_error, started_at_ms) = (failed.map(error), succeeded * 1000);
            ImagePods { start_error, started_at_ms, ..ImagePods::default() }
        };
        errors.record_success(&image("f"), at(1));
        errors.record_failure(&image("f"), "first", at(2));
        errors.record_failure(&image("f"), "second", at(3));
        errors.record_failure(&image("g"), "other", at(4));
        let all = errors.all(at(5));
        assert_eq!(all[&image("f")], last(Some((3, "second")), 1));
        assert_eq!(all[&image("g")], last(Some((4, "other")), 0));
        errors.record_success(&image("f"), at(6));
        assert_eq!(errors.all(at(7))[&image("f")], last(None, 6));
        assert_eq!(errors.all(at(3603)).len(), 2);
        let late = errors.all(at(3604));
        assert_eq!(late.keys().collect::<Vec<_>>(), [&image("f")], "the failure of g is an hour old");
        assert!(errors.all(at(3606)).is_empty());
    }

    #[test]
    fn a_rejection_is_over_when_a_pod_serves_a_call() {
        let mut errors = StartErrors::default();
        errors.record_rejection(&image("f"), "rejected", at(1));
        errors.record_failure(&image("g"), "failed", at(1));
        errors.record_rejection(&image("h"), "rejected", at(1));
        errors.record_failure(&image("h"), "failed", at(2));
        for name in ["f", "g", "h"] {
            assert!(errors.has_failed(&image(name), at(3)), "{name}");
            errors.record_served(&image(name));
        }
        let kept = ["f", "g", "h"].map(|name| errors.has_failed(&image(name), at(3)));
        assert_eq!(kept, [false, true, true], "the starts of g and h failed");
    }

    #[test]
    fn images_and_texts_are_bounded() {
        let mut errors = StartErrors::default();
        for number in 0..=1000 {
            errors.record_failure(&image(&number.to_string()), &"ž".repeat(1000), at(number));
            errors.record_success(&image(&format!("ready {number}")), at(number));
        }
        let most = (MAX_FAILURES.get(), MAX_SUCCESSES.get());
        assert_eq!((errors.failures.len(), errors.successes.len()), most);
        let has_failed = |name, now| errors.has_failed(&image(name), at(now));
        assert!(!has_failed("900", 1000) && has_failed("901", 1000));
        assert!(has_failed("1000", 4599) && !has_failed("1000", 4600));
        assert!(
            errors
                .failures
                .iter()
                .all(|(_, Failure { text, .. })| text.len() <= MAX_TEXT && text.ends_with('…'))
        );
        assert!(!errors.successes.contains(&image("ready 0")));
    }
}
