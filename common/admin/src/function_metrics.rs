//! Metrics per function image, which `--metrics-per-function` turns on. Callers choose images, so
//! the number of series is bounded.
//!
//! An image gets series of its own while there is room. If there is none, it takes the place of an
//! image without calls in the last ten minutes; otherwise its calls count as [`OTHER`]. No counter
//! that stays goes down: a removed image's counts move nowhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::Code;

use crate::metrics::{histogram, in_seconds};

/// The image of all calls whose image has no series of its own.
pub const OTHER: &str = "other";
/// An image without calls for this long may lose its series to another image.
const IDLE: Duration = Duration::from_mins(10);
/// Longest name of an image with series of its own, in bytes.
const MAX_IMAGE_BYTES: usize = 600;
/// Values of the label `outcome`, in the order of [`outcome`].
const OUTCOMES: [&str; 3] = ["ok", "failed", "cancelled"];

/// Counters and histograms by image.
#[derive(Debug)]
pub struct FunctionMetrics {
    limit: usize,
    calls: Family<[(&'static str, String); 2], Counter>,
    seconds: Family<[(&'static str, String); 1], Histogram>,
    images: Mutex<HashMap<Arc<str>, Series>>,
}

/// The series of one image. They are kept here too, so that a call allocates nothing.
#[derive(Debug)]
struct Series {
    calls: [Counter; OUTCOMES.len()],
    seconds: Histogram,
    last: Instant,
}

/// Whether a call that ended with this code counts as failed: neither answered nor cancelled by its
/// caller.
pub fn is_failed(code: Code) -> bool {
    !matches!(code, Code::Ok | Code::Cancelled)
}

impl FunctionMetrics {
    /// Registers `function_calls` by outcome and `function_call_seconds`, for at most `limit`
    /// images. `None` if `limit` is 0.
    pub fn calls(registry: &mut Registry, limit: usize) -> Option<Self> {
        let metrics = Self::seconds(
            registry,
            limit,
            "function_call",
            "Time from request to answer, by image; \"other\" is all images beyond --metrics-per-function",
        )?;
        registry.register(
            "function_calls",
            "Calls answered, by image and outcome: ok, failed, cancelled (by the caller)",
            metrics.calls.clone(),
        );
        Some(metrics)
    }

    /// Registers only a histogram of seconds. `None` if `limit` is 0.
    pub fn seconds(registry: &mut Registry, limit: usize, name: &str, help: &str) -> Option<Self> {
        if limit == 0 {
            return None;
        }
        let seconds = Family::new_with_constructor(histogram as fn() -> _);
        let seconds = in_seconds(registry, name, help, seconds);
        let metrics = Self { limit, calls: Family::default(), seconds, images: Mutex::default() };
        let other = metrics.series(OTHER);
        metrics.images.lock().insert(OTHER.into(), other);
        Some(metrics)
    }

    /// Counts a call that ended with `code`.
    pub fn record_call(&self, image: &str, code: Code, took: Duration) {
        self.record(image, |series| {
            series.calls[outcome(code)].inc();
            series.seconds.observe(took.as_secs_f64());
        });
    }

    /// Records a duration.
    pub fn observe(&self, image: &str, took: Duration) {
        self.record(image, |series| series.seconds.observe(took.as_secs_f64()));
    }

    fn record(&self, image: &str, record: impl FnOnce(&Series)) {
        let (mut images, now) = (self.images.lock(), Instant::now());
        if !images.contains_key(image) && self.has_room(&mut images, image, now) {
            images.insert(image.into(), self.series(image));
        }
        let known = if images.contains_key(image) { image } else { OTHER };
        if let Some(series) = images.get_mut(known) {
            series.last = now;
            record(series);
        }
    }

    /// Whether `image` may get series of its own. Removes those of an idle image for it.
    fn has_room(&self, images: &mut HashMap<Arc<str>, Series>, image: &str, now: Instant) -> bool {
        if image.is_empty() || image.len() > MAX_IMAGE_BYTES {
            return false;
        }
        // One entry is that of all others.
        if images.len() <= self.limit {
            return true;
        }
        let own = images.iter().filter(|(image, _)| &***image != OTHER);
        let oldest = own.min_by_key(|(_, series)| series.last);
        let idle = oldest.filter(|(_, series)| now.duration_since(series.last) >= IDLE);
        let Some(idle) = idle.map(|(image, _)| Arc::clone(image)) else { return false };
        images.remove(&idle);
        for outcome in OUTCOMES {
            self.calls.remove(&[("image", idle.to_string()), ("outcome", outcome.to_owned())]);
        }
        self.seconds.remove(&[("image", idle.to_string())]);
        true
    }

    /// New series, with the value zero.
    fn series(&self, image: &str) -> Series {
        let counter = |outcome: &str| {
            let labels = [("image", image.to_owned()), ("outcome", outcome.to_owned())];
            self.calls.get_or_create_owned(&labels)
        };
        let seconds = self.seconds.get_or_create_owned(&[("image", image.to_owned())]);
        Series { calls: OUTCOMES.map(counter), seconds, last: Instant::now() }
    }
}

fn outcome(code: Code) -> usize {
    match code {
        Code::Ok => 0,
        Code::Cancelled => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use tokio::time::advance;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn images_beyond_the_limit_are_other_until_one_is_idle() {
        let mut registry = Registry::default();
        let metrics = FunctionMetrics::calls(&mut registry, 2).unwrap();
        let call = |image: &str, code| metrics.record_call(image, code, Duration::from_millis(2));
        for image in ["a", "b", "c", "", OTHER, "x".repeat(MAX_IMAGE_BYTES + 1).as_str()] {
            call(image, Code::Ok);
        }
        call("a", Code::Internal);
        call("a", Code::Cancelled);
        let has = |line: &str| {
            let text = text(&registry);
            assert!(text.contains(&format!("function_call{line}\n")), "{line}: {text}");
        };
        for line in [
            "s_total{image=\"a\",outcome=\"ok\"} 1",
            "s_total{image=\"a\",outcome=\"failed\"} 1",
            "s_total{image=\"a\",outcome=\"cancelled\"} 1",
            "s_total{image=\"b\",outcome=\"failed\"} 0",
            "s_total{image=\"other\",outcome=\"ok\"} 4",
            "_seconds_count{image=\"a\"} 3",
            "_seconds_count{image=\"other\"} 4",
        ] {
            has(line);
        }
        advance(IDLE / 2).await;
        call("b", Code::Ok);
        advance(IDLE / 2).await;
        call("c", Code::Ok);
        has("s_total{image=\"c\",outcome=\"ok\"} 1");
        has("s_total{image=\"b\",outcome=\"ok\"} 2");
        has("s_total{image=\"other\",outcome=\"ok\"} 4");
        assert!(!text(&registry).contains("image=\"a\""), "{}", text(&registry));
        call("a", Code::Ok);
        has("s_total{image=\"other\",outcome=\"ok\"} 5");
    }

    #[test]
    fn without_a_limit_there_are_no_series() {
        let mut registry = Registry::default();
        assert!(FunctionMetrics::calls(&mut registry, 0).is_none());
        assert_eq!(text(&registry), "# EOF\n");
    }
}
