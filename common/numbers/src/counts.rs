//! A log-linear histogram of durations: sparse, so that it is small on the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets of each power of two: 2 to the power of this.
const BITS: u32 = 3;
const PER_POWER: usize = 1 << BITS;
/// Number of buckets. The last one also counts all durations above 71 minutes.
pub const BUCKETS: usize = (u32::BITS - BITS + 1) as usize * PER_POWER;

/// How many durations each bucket has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts(BTreeMap<u16, u64>);

impl Counts {
    pub(crate) fn of(counts: &[u64; BUCKETS]) -> Self {
        let counted = (0..).zip(counts).filter(|(_, count)| **count > 0);
        Self(counted.map(|(bucket, count)| (bucket, *count)).collect())
    }

    /// Adds `count` durations of a bucket. Ignores a bucket that does not exist.
    pub fn add(&mut self, bucket: usize, count: u64) {
        if let Ok(number) = u16::try_from(bucket)
            && bucket < BUCKETS
            && count > 0
        {
            let sum = self.0.entry(number).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds all durations of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.iter() {
            self.add(bucket.into(), count);
        }
    }

    /// The buckets with durations, in order, and how many each has.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().map(|(bucket, count)| (*bucket, *count))
    }

    /// How many durations there are.
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// A quantile in milliseconds; `quantile` is from 0 to 1. `None` if there are no durations.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = (self.total() as f64 * quantile).ceil() as u64;
        let mut below = 0_u64;
        let found = self.iter().find(|(_, count)| {
            below = below.saturating_add(*count);
            below >= rank.max(1)
        });
        found.map(|(bucket, _)| middle(bucket.into()))
    }
}

/// The bucket of a duration. Below 8 µs, each microsecond has a bucket.
pub(crate) fn bucket(took: Duration) -> usize {
    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
    let Some(shift) = micros.checked_ilog2().and_then(|power| power.checked_sub(BITS)) else {
        return micros as usize;
    };
    // The highest bit and the BITS bits after it, without the highest.
    let place = (micros >> shift) as usize - PER_POWER;
    (shift as usize + 1) * PER_POWER + place
}

/// The middle of a bucket, in milliseconds. A bucket of one microsecond has its own value.
fn middle(bucket: usize) -> f64 {
    let bucket = bucket.min(BUCKETS - 1);
    let micros = match bucket / PER_POWER {
        0 => bucket as f64,
        power => {
            let width = (1_u64 << (power - 1)) as f64;
            let first = (PER_POWER + bucket % PER_POWER) as f64 * width;
            first + (width - 1.0) / 2.0
        }
    };
    micros / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_within_six_percent_of_its_durations_and_buckets_are_in_order() {
        let mut last = 0;
        for micros in (0..100_000).chain((0..32).map(|power| (1_u64 << power) + 1)) {
            let number = bucket(Duration::from_micros(micros));
            assert!(number < BUCKETS && (number >= last || micros < 100_000), "{micros} {number}");
            last = number.max(last);
            let error = (middle(number) * 1000.0 - micros as f64).abs();
            assert!(error <= (micros as f64 * 0.0625), "{micros} {error}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket(Duration::from_micros(u64::from(u32::MAX))), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_durations() {
        let mut counts = Counts::default();
        assert_eq!(counts.quantile(0.5), None);
        for millis in 1..=100 {
            counts.add(bucket(Duration::from_millis(millis)), 1);
        }
        for (quantile, expected) in [(0.0, 1.0), (0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = counts.quantile(quantile).unwrap();
            assert!((found - expected).abs() <= expected * 0.0625, "{quantile}: {found}");
        }
    }

    #[test]
    fn a_peer_cannot_add_buckets_that_do_not_exist() {
        let mut counts = Counts::default();
        counts.merge(&Counts([(u16::MAX, 1), (3, u64::MAX), (4, 0)].into()));
        counts.add(3, 1);
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(3, u64::MAX)]);
        assert!(Counts([(u16::MAX, 1)].into()).quantile(0.5).is_some());
    }
}
