//! Calls, failures and durations per image, in bounded memory. Pure: the time is an argument.
//!
//! - [`Recorder`] records calls by image. At most [`MAX_IMAGES`] images have numbers of their own;
//!   the others are counted together under the empty name.
//! - [`Series`] has the numbers of one image or one runner, at most 8 KiB. So a recorder takes at
//!   most 900 KiB.
//! - [`Recorded`] is a snapshot that can be added to others: over images, runners or routers.
//! - [`Numbers`] is what people and programs read.
//!
//! A duration is counted in a bucket of a log-linear histogram: each power of two has 8 buckets. A
//! quantile is the middle of its bucket, so its error is at most 6.25 %, or 1 µs.

mod counts;
mod recorder;
mod series;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::counts::{BUCKETS, Counts};
pub use self::recorder::{MAX_IMAGE_BYTES, MAX_IMAGES, Recorder};
pub use self::series::{SLOT, SLOTS, Series};

/// The numbers of an image, a runner, or all images. Fields are never removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Numbers {
    /// Calls since recording began: the router's start, or when the image got numbers of its own.
    pub calls: u64,
    /// The part of `calls` that failed.
    pub failed: u64,
    /// The last minute.
    pub minute: Minute,
    /// Calls and failed calls in slots of 10 s, oldest first: [`SLOTS`] slots, of which the last is
    /// the current one.
    pub ten_minutes: Vec<[u64; 2]>,
}

/// The numbers of the last 60 s. Quantiles cover up to 10 s more, and are `None` without calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Minute {
    /// Calls.
    pub calls: u64,
    /// The part of `calls` that failed.
    pub failed: u64,
    /// The median duration of calls, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The 95th percentile, in milliseconds.
    pub p95_ms: Option<f64>,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: Option<f64>,
    /// The median time that calls waited for a place in a pod or for the exec runtime, in
    /// milliseconds.
    pub queue_p50_ms: Option<f64>,
    /// The 95th percentile of that time, in milliseconds.
    pub queue_p95_ms: Option<f64>,
}

/// A snapshot that can be added to others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// Calls since recording began.
    pub calls: u64,
    /// The part of `calls` that failed.
    pub failed: u64,
    /// Calls and failed calls in the last 60 s.
    pub minute: [u64; 2],
    /// Calls and failed calls in slots of 10 s, oldest first; the last is the current one.
    pub ten_minutes: Vec<[u64; 2]>,
    /// The durations of the last minute.
    pub durations: Counts,
    /// The waits of the last minute. A recorder does not know them: runners report them.
    pub queue: Counts,
}

impl Recorded {
    /// Adds the calls of `other`. Slots of two processes begin at different times, so a call may
    /// count in the slot beside its own.
    pub fn merge(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failed = self.failed.saturating_add(other.failed);
        add(&mut self.minute, other.minute);
        let (own, others) = (self.ten_minutes.len(), other.ten_minutes.len().min(SLOTS));
        if own < others {
            self.ten_minutes.splice(0..0, std::iter::repeat_n([0; 2], others - own));
        }
        for (slot, more) in self.ten_minutes.iter_mut().rev().zip(other.ten_minutes.iter().rev()) {
            add(slot, *more);
        }
        self.durations.merge(&other.durations);
        self.queue.merge(&other.queue);
    }

    /// The numbers for readers.
    pub fn numbers(&self) -> Numbers {
        let [calls, failed] = self.minute;
        let took = |quantile| self.durations.quantile(quantile).filter(|_| calls > 0);
        let mut ten_minutes = vec![[0; 2]; SLOTS.saturating_sub(self.ten_minutes.len())];
        ten_minutes.extend(self.ten_minutes.iter().rev().take(SLOTS).rev());
        Numbers {
            calls: self.calls,
            failed: self.failed,
            minute: Minute {
                calls,
                failed,
                p50_ms: took(0.5),
                p95_ms: took(0.95),
                p99_ms: took(0.99),
                queue_p50_ms: self.queue.quantile(0.5),
                queue_p95_ms: self.queue.quantile(0.95),
            },
            ten_minutes,
        }
    }
}

fn add(sum: &mut [u64; 2], more: [u64; 2]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}
