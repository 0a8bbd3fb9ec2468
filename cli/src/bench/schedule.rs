//! When calls start, and when a round ends. Pure.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// The end of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound {
    calls: Option<u64>,
    time: Duration,
}

// === impl Bound ===

impl Bound {
    /// A round of `calls`, or of `time`. `most` bounds both.
    pub(super) fn new(calls: Option<NonZeroU64>, time: Duration, most: Duration) -> Self {
        let calls = calls.map(NonZeroU64::get);
        Self { calls, time: if calls.is_some() { most } else { time.min(most) } }
    }

    /// Whether call `number`, from 0, may start `elapsed` after the start of the round.
    pub(super) fn allows(&self, number: u64, elapsed: Duration) -> bool {
        elapsed < self.time && self.calls.is_none_or(|calls| number < calls)
    }
}

/// When call `number`, from 0, starts at this rate, after the start of the round.
pub(super) fn planned(number: u64, rate: NonZeroU32) -> Duration {
    let rate = u64::from(rate.get());
    let nanos = number % rate * 1_000_000_000 / rate;
    Duration::new(number / rate, u32::try_from(nanos).unwrap_or_default())
}

/// The address of each round, as an index. Each pair of rounds begins with the other address, so
/// that a machine that becomes slower affects both alike.
pub(super) fn order(addresses: usize, rounds: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| {
        (0..addresses).map(move |index| if round % 2 == 0 { index } else { addresses - 1 - index })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_start_evenly_and_without_drift() {
        let rate = NonZeroU32::new(3).unwrap();
        let planned = |number| planned(number, rate).as_nanos();
        assert_eq!([0, 1, 2, 3, 4].map(planned), [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333]);
        assert_eq!(planned(u64::MAX / 4), u128::from(u64::MAX / 12) * 1_000_000_000);
    }

    #[test]
    fn a_round_is_bounded_by_calls_or_time() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        let by_time = Bound::new(None, second, minute);
        assert!(by_time.allows(u64::MAX, second / 2) && !by_time.allows(0, second));
        assert!(!Bound::new(None, minute * 2, minute).allows(0, minute));
        let by_calls = Bound::new(NonZeroU64::new(2), second, minute);
        assert!(by_calls.allows(1, second * 2) && !by_calls.allows(2, second) && !by_calls.allows(0, minute));
    }

    #[test]
    fn rounds_take_turns() {
        assert_eq!(order(2, 3).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 1]);
        assert_eq!(order(1, 2).collect::<Vec<_>>(), [0, 0]);
    }
}
