//! Pauses between attempts. Each pause is twice as long as the one before, up to a limit, so that a
//! recovering server gets few requests. [`spread`] makes pauses random, so that many clients do not
//! send their requests at the same time.

use std::ops::Range;
use std::time::Duration;

/// The pauses after consecutive failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Backoff {
    /// The pauses grow from `first` to `last`.
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// Returns the pause after a failure.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.last);
        pause
    }

    /// Begins again with the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Multiplies `pause` by a random factor in `range`.
pub fn spread(pause: Duration, range: Range<f64>) -> Duration {
    pause.mul_f64(range.start + (range.end - range.start) * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_a_success_resets_them() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(100), millis(500));
        for expected in [100, 200, 400, 500, 500] {
            assert_eq!(backoff.next_pause(), millis(expected));
        }
        backoff.reset();
        assert_eq!(backoff.next_pause(), millis(100));
    }

    #[test]
    fn a_pause_is_spread_within_the_range() {
        let pauses: Vec<_> = (0..100).map(|_| spread(Duration::from_secs(1), 0.5..1.5)).collect();
        assert!(pauses.iter().all(|pause| (0.5..1.5).contains(&pause.as_secs_f64())), "{pauses:?}");
        assert_ne!(pauses[0], pauses[1]);
    }
}
