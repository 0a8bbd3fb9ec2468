//! The retry budget: limits how many calls are sent a second time.
//!
//! Each call is retried at most once after it was sent. Without a budget, this could still double
//! the load of a failing cluster. The budget allows a burst, because a runner that dies interrupts
//! all of its calls in flight. After the burst, the budget allows retries for a share of the calls.

use std::time::Duration;

/// Maximum number of retries in a burst.
const RESERVE: f64 = 1000.0;
/// Retries per second that are always allowed.
const PER_SECOND: f64 = 10.0;
/// Retries that each call adds to the budget.
const PER_CALL: f64 = 0.2;

/// How long a reservation for a lost runner is valid. Ten seconds are enough, because all
/// calls on the runner fail at about the same time.
const RESERVED_FOR: Duration = Duration::from_secs(10);

/// A token bucket. All times are durations since the same origin.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    /// Retries that were taken from the budget, minus those that calls and time added later. At
    /// most [`RESERVE`].
    spent: f64,
    updated: Duration,
    /// Reserved retries for the calls of lost runners, and when the reservation expires.
    reserved: usize,
    reserved_until: Duration,
}

impl RetryBudget {
    /// Adds [`PER_CALL`] retries for one call.
    pub(crate) fn deposit(&mut self) {
        self.earn(PER_CALL);
    }

    /// Reserves one retry for each of the `calls` in flight on a lost runner.
    pub(crate) fn reserve(&mut self, calls: usize, now: Duration) {
        if calls == 0 {
            return;
        }
        // Reservations of runners that are lost at the same time are added up.
        let left = if now < self.reserved_until { self.reserved } else { 0 };
        self.reserved = left.saturating_add(calls);
        self.reserved_until = now.saturating_add(RESERVED_FOR);
    }

    /// Takes one retry. Returns false if the budget is empty.
    pub(crate) fn withdraw(&mut self, now: Duration) -> bool {
        if self.reserved > 0 && now < self.reserved_until {
            self.reserved -= 1;
            return true;
        }
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        self.earn(elapsed * PER_SECOND);
        self.updated = self.updated.max(now);
        let granted = self.spent <= RESERVE - 1.0;
        if granted {
            self.spent += 1.0;
        }
        granted
    }

    fn earn(&mut self, retries: f64) {
        self.spent = (self.spent - retries).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(budget: &mut RetryBudget, asked: usize, now: Duration) -> usize {
        (0..asked).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_burst_is_allowed_and_then_a_share_of_the_calls() {
        let mut budget = RetryBudget::default();
        assert_eq!(granted(&mut budget, 2000, Duration::ZERO), 1000);
        assert_eq!(granted(&mut budget, 50, Duration::from_secs(1)), 10, "retries that are always allowed");
        for _ in 0..500 {
            budget.deposit();
        }
        // 500 calls add 100 retries; rounding may cost one retry.
        assert!((99..=100).contains(&granted(&mut budget, 500, Duration::from_secs(1))));
        assert_eq!(
            granted(&mut budget, 5000, Duration::from_hours(1)),
            1000,
            "tokens never exceed the reserve"
        );
    }

    #[test]
    fn all_calls_of_a_lost_runner_may_be_retried_once() {
        let mut budget = RetryBudget::default();
        let s = Duration::from_secs;
        budget.reserve(5000, s(0));
        assert_eq!(granted(&mut budget, 7000, s(0)), 6000, "the reservation and the reserve");
        // Two runners are lost at the same time.
        budget.reserve(30, s(1));
        budget.reserve(20, s(1));
        assert_eq!(granted(&mut budget, 100, s(1)), 60);
        budget.reserve(1000, s(1));
        assert_eq!(
            granted(&mut budget, 2000, s(1) + RESERVED_FOR),
            100,
            "the reservation has expired; ten seconds earned 100"
        );
        budget.reserve(0, s(20));
        assert_eq!(granted(&mut budget, 100, s(1) + RESERVED_FOR), 0);
    }
}
